//! Handles to record with, figures that are read at each scrape, and the text of all.
//!
//! It must not know who reads the text.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Histogram, Key, Label as KeyLabel, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use super::label::Label;
use super::names::{self, ALL, Kind, Name, SECONDS, SIZES};
use super::process::Process;
use crate::traces::Tracer;

/// How often what has been recorded is added up: bounds what waits for that.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);
/// Where metrics come from, as the recorder's interface asks.
const METADATA: Metadata<'static> = Metadata::new("baton", Level::INFO, None);

/// Reads figures when somebody asks.
type Source = Box<dyn Fn(&Scrape<'_>) + Send + Sync>;

/// The metrics of one process.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    process: Process,
    /// Held while a text is made, so that its figures are of one moment.
    sources: Mutex<Vec<Source>>,
}

/// Records times.
#[derive(Debug, Clone)]
pub struct Timing(Histogram);

/// Records sizes.
#[derive(Debug, Clone)]
pub struct Size(Histogram);

/// A scrape in the making, for sources to tell their figures.
pub struct Scrape<'a>(&'a PrometheusRecorder);

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Shared with nobody, not even in the same process.
    pub fn new() -> Arc<Self> {
        let mut builder = PrometheusBuilder::new();
        for row in ALL {
            let bounds = match row.kind {
                Kind::Timing => SECONDS,
                Kind::Size => SIZES,
                Kind::Counter | Kind::Gauge => continue,
            };
            let matcher = Matcher::Full(row.name.to_owned());
            builder = builder
                .set_buckets_for_metric(matcher, bounds)
                .expect("no list of bounds is empty");
        }
        let recorder = builder.build_recorder();
        for row in ALL {
            let (name, help) = (row.name.into(), row.help.into());
            match row.kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                Kind::Timing | Kind::Size => recorder.describe_histogram(name, None, help),
            }
        }
        Arc::new(Self {
            handle: recorder.handle(),
            recorder,
            process: Process::default(),
            sources: Mutex::default(),
        })
    }

    /// Says what this process is; the first word counts.
    pub fn set_role(&self, role: &'static str) {
        self.process.set_role(role);
    }

    /// A handle to record times with.
    pub fn timing(&self, name: &Name<names::Timing, 0>) -> Timing {
        Timing(self.histogram(name.text))
    }

    /// A handle to record sizes with.
    pub fn size(&self, name: &Name<names::Size, 0>) -> Size {
        Size(self.histogram(name.text))
    }

    fn histogram(&self, name: &'static str) -> Histogram {
        let key = Key::from_static_name(name);
        self.recorder.register_histogram(&key, &METADATA)
    }

    /// From now on, figures are read from there too. It must not own these metrics.
    pub fn read_from(&self, source: impl Fn(&Scrape<'_>) + Send + Sync + 'static) {
        self.sources().push(Box::new(source));
    }

    /// All figures as Prometheus text, ordered by name.
    pub fn render(&self) -> String {
        let sources = self.sources();
        let scrape = Scrape(&self.recorder);
        self.process.tell(&scrape);
        for source in sources.iter() {
            source(&scrape);
        }
        let text = self.handle.render();
        drop(sources);
        let mut blocks: Vec<&str> = text.split_terminator("\n\n").collect();
        blocks.sort_unstable();
        let mut ordered = String::with_capacity(text.len());
        for block in blocks {
            ordered.push_str(block);
            ordered.push('\n');
        }
        ordered
    }

    /// Adds up what has been recorded, again and again; ends only by being dropped.
    pub async fn keep(self: Arc<Self>) {
        let mut rounds = tokio::time::interval(UPKEEP_EVERY);
        loop {
            rounds.tick().await;
            self.handle.run_upkeep();
        }
    }

    fn sources(&self) -> MutexGuard<'_, Vec<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timing {
    /// Records one.
    pub fn record(&self, time: Duration) {
        self.0.record(time.as_secs_f64());
    }
}

impl Size {
    /// Records one.
    pub fn record(&self, size: usize) {
        self.0.record(size as f64);
    }
}

impl Scrape<'_> {
    /// Tells a total since the start; it never shrinks.
    pub fn count<const N: usize>(
        &self,
        name: &Name<names::Counter, N>,
        values: [&str; N],
        total: u64,
    ) {
        let key = key(name.text, &name.labels, &values);
        self.0.register_counter(&key, &METADATA).absolute(total);
    }

    /// Tells what has become of spans; nothing of them is nothing so far.
    pub fn spans(&self, tracer: &Tracer) {
        let totals: Vec<_> = tracer.counters().collect();
        for outcome in ["exported", "dropped", "failed"] {
            let of_outcome = totals.iter().find(|(name, _)| name.ends_with(outcome));
            let total = of_outcome.map_or(0, |(_, total)| *total);
            self.count(&names::TRACE_SPANS, [outcome], total);
        }
    }

    /// Tells how much there is now.
    pub fn gauge<const N: usize>(&self, name: &Name<names::Gauge, N>, values: [&str; N], now: f64) {
        let key = key(name.text, &name.labels, &values);
        self.0.register_gauge(&key, &METADATA).set(now);
    }
}

fn key(name: &'static str, labels: &[Label], values: &[&str]) -> Key {
    let labels: Vec<KeyLabel> = labels
        .iter()
        .zip(values)
        .map(|(label, value)| KeyLabel::new(label.name, label.shown(value)))
        .collect();
    Key::from_parts(name, labels)
}
