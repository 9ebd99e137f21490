//! The thread that sends spans, with a runtime of its own: whatever a collector does, it does to this thread.
//!
//! It must not know what the spans are about.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::collector::Collector;
use super::counts::{Counts, add};
use super::queue::Queue;
use super::resource::resource;
use super::settings::{Identity, Settings};
use super::tracer::{Tracer, Tracing};

/// Longest time that the end of the process waits for spans to leave.
const FLUSH_LIMIT: Duration = Duration::from_secs(3);

/// The end of tracing. Dropping it leaves the exporter running until the process ends.
#[derive(Debug, Default)]
pub struct Exporter(Option<Running>);

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<Stop>,
    counts: Arc<Counts>,
}

/// The thread is to send what waits until then, and to answer.
type Stop = (Instant, oneshot::Sender<()>);

/// Starts to export by these settings, as this process.
///
/// # Errors
/// The thread or its runtime cannot be started.
pub fn start(settings: Settings, identity: &Identity) -> std::io::Result<(Tracer, Exporter)> {
    let counts = Arc::new(Counts::default());
    let (spans, waiting) = mpsc::channel(settings.queue_spans);
    let resource = resource(identity, &settings.resource);
    let queue = Queue {
        spans,
        counts: Arc::clone(&counts),
    };
    let provider = SdkTracerProvider::builder()
        .with_sampler(settings.sampler.clone())
        .with_resource(resource.clone())
        .with_span_processor(queue)
        .build();
    let scope = InstrumentationScope::builder("baton")
        .with_version(identity.version.clone())
        .build();
    let tracer = Tracer::new(Tracing {
        tracer: provider.tracer_with_scope(scope),
        counts: Arc::clone(&counts),
        takes_context: settings.takes_context,
        believes: matches!(settings.sampler, Sampler::ParentBased(_)),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (stop, stopped) = oneshot::channel();
    let thread_counts = Arc::clone(&counts);
    let run = move || {
        runtime.block_on(async {
            let Settings {
                endpoint,
                shown_endpoint,
                metadata,
                timeout,
                delay,
                batch_spans,
                ..
            } = settings;
            let sending = Sending {
                collector: Collector::new(&endpoint, metadata, &resource, timeout),
                shown_endpoint,
                counts: thread_counts,
                fails: false,
            };
            let batches = Batches {
                waiting,
                delay,
                most: batch_spans,
            };
            run(sending, batches, stopped).await;
        });
    };
    std::thread::Builder::new()
        .name("baton-traces".to_owned())
        .spawn(run)?;
    Ok((tracer, Exporter(Some(Running { stop, counts }))))
}

impl Exporter {
    /// Sends what waits, for at most 3 s; what is left then is dropped, and told in the log.
    pub async fn finish(self) {
        let Some(Running { stop, counts }) = self.0 else {
            return;
        };
        let until = Instant::now() + FLUSH_LIMIT;
        // The thread is to be done first, and its counts to be right.
        let sent_by = until - Duration::from_millis(250);
        let (done, told) = oneshot::channel();
        let all_sent = stop.send((sent_by, done)).is_ok()
            && matches!(tokio::time::timeout_at(until, told).await, Ok(Ok(())));
        let [_, (_, dropped), (_, failed)] = counts.snapshot();
        if !all_sent || dropped + failed > 0 {
            tracing::warn!(
                dropped,
                failed,
                all_sent,
                "spans did not reach the collector of traces"
            );
        }
    }
}

/// Spans as they come, many at a time.
struct Batches {
    waiting: mpsc::Receiver<SpanData>,
    delay: Duration,
    most: usize,
}

impl Batches {
    /// The next batch: full, or as old as may be. Empty once no span will come. Cancel-safe.
    async fn next(&mut self, batch: &mut Vec<SpanData>) {
        if batch.is_empty() {
            let Some(first) = self.waiting.recv().await else {
                return;
            };
            batch.push(first);
        }
        let until = Instant::now() + self.delay;
        while batch.len() < self.most {
            match tokio::time::timeout_at(until, self.waiting.recv()).await {
                Ok(Some(span)) => batch.push(span),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// What is left, without waiting for more.
    fn left(&mut self, batch: &mut Vec<SpanData>) {
        self.waiting.close();
        while batch.len() < self.most {
            let Ok(span) = self.waiting.try_recv() else {
                return;
            };
            batch.push(span);
        }
    }

    /// Gives up what is left.
    fn drop_all(&mut self, counts: &Counts) {
        let mut left = 0;
        while self.waiting.try_recv().is_ok() {
            left += 1;
        }
        add(&counts.dropped, left);
    }
}

struct Sending {
    collector: Collector,
    shown_endpoint: String,
    counts: Arc<Counts>,
    /// Whether the last batch did not arrive.
    fails: bool,
}

impl Sending {
    async fn send(&mut self, batch: Vec<SpanData>) {
        let spans = batch.len();
        let mut unsent = Unsent {
            counts: Arc::clone(&self.counts),
            spans,
        };
        match self.collector.send(batch).await {
            Ok(taken) => {
                add(&self.counts.exported, taken);
                unsent.spans -= taken;
                if std::mem::take(&mut self.fails) {
                    tracing::info!("traces reach {} again", self.shown_endpoint);
                }
            }
            Err(status) => {
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(
                        "traces do not reach {}: {}: {}; spans are dropped meanwhile, requests go on",
                        self.shown_endpoint,
                        status.code(),
                        status.message()
                    );
                }
            }
        }
    }
}

/// Spans of a batch that nobody has taken: counted when it is given up, also half way.
struct Unsent {
    counts: Arc<Counts>,
    spans: usize,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        add(&self.counts.failed, self.spans);
    }
}

async fn run(mut sending: Sending, mut batches: Batches, stopped: oneshot::Receiver<Stop>) {
    let mut stopped = std::pin::pin!(asked(stopped));
    let mut batch = Vec::new();
    let (until, done) = loop {
        tokio::select! {
            biased;
            stop = &mut stopped => break stop,
            () = batches.next(&mut batch) => {}
        }
        if batch.is_empty() {
            // No tracer is left.
            let (_, done) = stopped.await;
            let _ = done.send(());
            return;
        }
        let full = std::mem::take(&mut batch);
        let mut sent = std::pin::pin!(sending.send(full));
        tokio::select! {
            biased;
            () = &mut sent => {}
            stop = &mut stopped => {
                let _ = tokio::time::timeout_at(stop.0, sent).await;
                break stop;
            }
        }
    };
    loop {
        batches.left(&mut batch);
        if batch.is_empty() {
            break;
        }
        let rest = std::mem::take(&mut batch);
        let sent = tokio::time::timeout_at(until, sending.send(rest)).await;
        if sent.is_err() {
            batches.drop_all(&sending.counts);
            break;
        }
    }
    let _ = done.send(());
}

/// Resolves when the end is asked for; if nobody can any more, the process's own ends this thread.
async fn asked(stopped: oneshot::Receiver<Stop>) -> Stop {
    match stopped.await {
        Ok(stop) => stop,
        Err(_) => std::future::pending().await,
    }
}
