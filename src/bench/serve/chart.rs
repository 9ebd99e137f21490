//! Every gap over time as a chart: streams alone above streams with prompts injected beside them.

use crate::bench::plot::{Axis, Chart, Colour, Look, Panel, Series};
use crate::bench::statistics::quantile;

use super::gaps::gaps;
use super::load::Sample;
use super::plan::{Arrivals, Run};
use super::report::ms;

/// Longest gap over the shortest that has a place of its own.
const MOST_RATIO: f64 = 1000.0;

/// One panel for each kind of run, all rounds in it.
pub(crate) fn chart(runs: &[(Run, Vec<Sample>)]) -> Chart {
    let kinds = [false, true].map(|disturbed| Kind::new(runs, disturbed));
    let every = kinds.iter().flat_map(|kind| &kind.gaps);
    let positive = every.clone().map(|(_, gap)| *gap).filter(|gap| *gap > 0.0);
    let mut sorted: Vec<f64> = positive.collect();
    sorted.sort_by(f64::total_cmp);
    // The same axes, so that panels can be compared. Tokens that arrived together make gaps of nearly
    // nothing: they stand on the lower end, or the axis would be theirs.
    let longest = quantile(&sorted, 1.0);
    let ends = [quantile(&sorted, 0.05).max(longest / MOST_RATIO), longest];
    let y = Axis::around("gap between tokens, ms", ends.into_iter());
    let events = kinds.iter().flat_map(|kind| &kind.injected);
    let ends = every.map(|(end, _)| *end).chain(events.copied());
    let mut x = Axis::from_zero("seconds", ends);
    if let Some(Arrivals::Steady { duration, .. }) = runs.first().map(|(run, _)| run.plan.arrivals)
    {
        x.most = x.most.min(duration.as_secs_f64() * 1.02);
    }
    let panels = kinds
        .iter()
        .filter(|kind| kind.runs > 0)
        .map(|kind| kind.panel(&x, &y));
    Chart {
        title: "Every gap between tokens".to_owned(),
        subtitle: subtitle(runs),
        columns: 1,
        panels: panels.collect(),
    }
}

fn subtitle(runs: &[(Run, Vec<Sample>)]) -> String {
    let Some((run, _)) = runs.last() else {
        return String::new();
    };
    let load = match run.plan.arrivals {
        Arrivals::Closed { concurrency } => format!("{concurrency} requests at once"),
        Arrivals::Poisson { rate } => format!("{rate} requests per second"),
        Arrivals::Steady {
            streams,
            inject: None,
            ..
        } => format!("{streams} streams"),
        Arrivals::Steady {
            streams,
            inject: Some(inject),
            ..
        } => {
            format!(
                "{streams} streams, {} injected prompts per second",
                inject.rate
            )
        }
    };
    match run.round {
        1 => load,
        rounds => format!("{load}, {rounds} rounds"),
    }
}

/// All runs of one kind.
struct Kind {
    disturbed: bool,
    runs: usize,
    /// End in seconds, length in milliseconds, of steady streams; of all requests where there are none.
    gaps: Vec<(f64, f64)>,
    /// When prompts were injected, in seconds.
    injected: Vec<f64>,
}

impl Kind {
    fn new(runs: &[(Run, Vec<Sample>)], disturbed: bool) -> Self {
        let runs: Vec<_> = runs
            .iter()
            .filter(|(run, _)| run.disturbed == disturbed)
            .collect();
        let mut kind = Self {
            disturbed,
            runs: runs.len(),
            gaps: Vec::new(),
            injected: Vec::new(),
        };
        for (run, samples) in runs {
            let steady = matches!(run.plan.arrivals, Arrivals::Steady { .. });
            for sample in samples {
                if steady && !sample.steady {
                    kind.injected.push(sample.start.as_secs_f64());
                    continue;
                }
                let of_sample =
                    gaps(sample).map(|(end, gap)| ((sample.start + end).as_secs_f64(), ms(gap)));
                kind.gaps.extend(of_sample);
            }
        }
        kind
    }

    fn panel(&self, x: &Axis, y: &Axis) -> Panel {
        let mut sorted: Vec<f64> = self.gaps.iter().map(|(_, gap)| *gap).collect();
        sorted.sort_by(f64::total_cmp);
        let (p99, max) = (quantile(&sorted, 0.99), quantile(&sorted, 1.0));
        let colour = if self.disturbed {
            Colour::Orange
        } else {
            Colour::Blue
        };
        let mut series = vec![
            Series {
                name: format!("{} gaps, the longest {max:.0} ms", sorted.len()),
                colour,
                look: Look::Dots,
                points: self.gaps.clone(),
            },
            Series {
                name: format!("p99 {p99:.1} ms"),
                colour: Colour::Grey,
                look: Look::Limit,
                points: vec![(x.least, p99), (x.most, p99)],
            },
        ];
        if self.disturbed {
            series.push(Series {
                name: "a prompt is injected".to_owned(),
                colour: Colour::Green,
                look: Look::Events,
                points: self
                    .injected
                    .iter()
                    .map(|start| (*start, y.least))
                    .collect(),
            });
        }
        let title = if self.disturbed {
            "With injected prompts"
        } else {
            "Alone"
        };
        Panel {
            title: title.to_owned(),
            x: x.clone(),
            y: y.clone(),
            series,
        }
    }
}
