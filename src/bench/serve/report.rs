//! From samples to figures: distributions over every single TTFT and every single gap.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::statistics::{mean, quantile};

use super::gaps::gaps;
use super::load::Sample;
use super::plan::{Arrivals, Plan};

/// Figures of one group of requests.
struct Group {
    name: &'static str,
    requests: usize,
    failed: usize,
    /// Within the targets, if any were given.
    good: usize,
    tokens: usize,
    prompt_tokens: u64,
    /// From the run's start to its last token: who ends earlier than others is not diluted by them.
    elapsed: Duration,
    ttft: Vec<f64>,
    itl: Vec<f64>,
}

/// The report of a run.
pub(crate) struct Report {
    elapsed: Duration,
    seed: u64,
    groups: Vec<Group>,
    errors: Vec<(String, usize)>,
}

impl Report {
    /// Gathers figures; steady and injected requests are reported apart.
    pub(crate) fn new(samples: &[Sample], plan: &Plan) -> Self {
        let elapsed = samples.iter().map(end).max().unwrap_or_default();
        let groups = if matches!(plan.arrivals, Arrivals::Steady { .. }) {
            let of = |steady: bool| samples.iter().filter(move |sample| sample.steady == steady);
            let mut groups = vec![Group::new("steady", of(true), plan)];
            if of(false).next().is_some() {
                groups.push(Group::new("injected", of(false), plan));
            }
            groups
        } else {
            vec![Group::new("requests", samples.iter(), plan)]
        };
        let mut errors: Vec<(String, usize)> = Vec::new();
        for error in samples.iter().filter_map(|sample| sample.error.as_ref()) {
            match errors.iter_mut().find(|(text, _)| text == error) {
                Some((_, count)) => *count += 1,
                None => errors.push((error.clone(), 1)),
            }
        }
        errors.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        errors.truncate(20);
        Self {
            elapsed,
            seed: plan.seed,
            groups,
            errors,
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let mut report = json!({ "elapsed_s": seconds, "seed": self.seed });
        for group in &self.groups {
            let seconds = group.seconds();
            report[group.name] = json!({
                "requests": group.requests,
                "failed": group.failed,
                "prompt_tokens": group.prompt_tokens,
                "output_tokens": group.tokens,
                "output_tokens_per_s": group.tokens as f64 / seconds,
                "requests_per_s": (group.requests - group.failed) as f64 / seconds,
                "goodput_per_s": group.good as f64 / seconds,
                "ttft_ms": distribution(&group.ttft),
                "itl_ms": distribution(&group.itl),
            });
        }
        report["errors"] = self
            .errors
            .iter()
            .map(|(text, count)| json!({ "error": text, "count": count }))
            .collect();
        report
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        use std::fmt::Write as _;
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let mut text = format!("elapsed {seconds:.1} s, seed {}\n", self.seed);
        // Writing to a String cannot fail.
        for group in &self.groups {
            let seconds = group.seconds();
            let _ = writeln!(
                text,
                "\n{}: {} ({} failed), {} prompt and {} output tokens, {:.1} output tok/s, {:.2} requests/s, goodput {:.2}/s",
                group.name,
                group.requests,
                group.failed,
                group.prompt_tokens,
                group.tokens,
                group.tokens as f64 / seconds,
                (group.requests - group.failed) as f64 / seconds,
                group.good as f64 / seconds,
            );
            let _ = writeln!(
                text,
                "  {:<10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
                "ms", "mean", "p50", "p90", "p99", "max", "count"
            );
            for (name, values) in [("TTFT", &group.ttft), ("ITL", &group.itl)] {
                let _ = writeln!(
                    text,
                    "  {name:<10}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10}",
                    mean(values),
                    quantile(values, 0.5),
                    quantile(values, 0.9),
                    quantile(values, 0.99),
                    quantile(values, 1.0),
                    values.len(),
                );
            }
        }
        for (error, count) in &self.errors {
            let _ = writeln!(text, "{count} × {error}");
        }
        text
    }
}

impl Group {
    fn seconds(&self) -> f64 {
        self.elapsed.as_secs_f64().max(1e-9)
    }

    fn new<'a>(name: &'static str, samples: impl Iterator<Item = &'a Sample>, plan: &Plan) -> Self {
        let mut group = Self {
            name,
            requests: 0,
            failed: 0,
            good: 0,
            tokens: 0,
            prompt_tokens: 0,
            elapsed: Duration::ZERO,
            ttft: Vec::new(),
            itl: Vec::new(),
        };
        for sample in samples {
            group.requests += 1;
            group.tokens += sample.tokens.len();
            group.prompt_tokens += u64::from(sample.prompt_tokens);
            group.elapsed = group.elapsed.max(end(sample));
            let gaps: Vec<f64> = gaps(sample).map(|(_, gap)| ms(gap)).collect();
            let first = sample.tokens.first().copied();
            group.ttft.extend(first.map(ms));
            if sample.error.is_some() {
                group.failed += 1;
            } else if first.is_some_and(|first| within(first, &gaps, plan)) {
                group.good += 1;
            }
            group.itl.extend(gaps);
        }
        group.ttft.sort_by(f64::total_cmp);
        group.itl.sort_by(f64::total_cmp);
        group
    }
}

/// When the last token of a request arrived, since the run's start.
fn end(sample: &Sample) -> Duration {
    sample.start + sample.tokens.last().copied().unwrap_or_default()
}

/// Whether a request met the targets; without targets every finished one does.
fn within(first: Duration, gaps: &[f64], plan: &Plan) -> bool {
    plan.ttft_target.is_none_or(|target| first <= target)
        && plan
            .itl_target
            .is_none_or(|target| mean(gaps) <= ms(target))
}

pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

pub(crate) fn distribution(sorted: &[f64]) -> Value {
    json!({
        "count": sorted.len(),
        "mean": mean(sorted),
        "p50": quantile(sorted, 0.5),
        "p90": quantile(sorted, 0.9),
        "p99": quantile(sorted, 0.99),
        "max": quantile(sorted, 1.0),
    })
}
