//! From samples to figures: distributions over every single TTFT and every single gap.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::exit::Failure;

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
        let end =
            |sample: &Sample| sample.start + sample.tokens.last().copied().unwrap_or_default();
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
    fn new<'a>(name: &'static str, samples: impl Iterator<Item = &'a Sample>, plan: &Plan) -> Self {
        let mut group = Self {
            name,
            requests: 0,
            failed: 0,
            good: 0,
            tokens: 0,
            prompt_tokens: 0,
            ttft: Vec::new(),
            itl: Vec::new(),
        };
        for sample in samples {
            group.requests += 1;
            group.tokens += sample.tokens.len();
            group.prompt_tokens += u64::from(sample.prompt_tokens);
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

/// Whether a request met the targets; without targets every finished one does.
fn within(first: Duration, gaps: &[f64], plan: &Plan) -> bool {
    plan.ttft_target.is_none_or(|target| first <= target)
        && plan
            .itl_target
            .is_none_or(|target| mean(gaps) <= ms(target))
}

/// Every gap of a request: when it ended (since the request's start), and its length.
fn gaps(sample: &Sample) -> impl Iterator<Item = (Duration, Duration)> + '_ {
    sample
        .tokens
        .windows(2)
        .map(|pair| (pair[1], pair[1].saturating_sub(pair[0])))
}

/// Writes every gap as a line: end in seconds since the run's start, gap in milliseconds, request.
pub(crate) fn write_gaps(path: &Path, samples: &[Sample]) -> Result<(), Failure> {
    let wrong =
        |error: std::io::Error| Failure::failed(format!("--gaps {}: {error}", path.display()));
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).map_err(wrong)?);
    writeln!(file, "end_s,gap_ms,request,steady").map_err(wrong)?;
    for (index, sample) in samples.iter().enumerate() {
        for (end, gap) in gaps(sample) {
            let end = (sample.start + end).as_secs_f64();
            writeln!(file, "{end:.6},{:.3},{index},{}", ms(gap), sample.steady).map_err(wrong)?;
        }
    }
    file.flush().map_err(wrong)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        0.0
    } else {
        values.iter().sum::<f64>() / values.len() as f64
    }
}

/// Nearest-rank quantile of sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn distribution(sorted: &[f64]) -> Value {
    json!({
        "count": sorted.len(),
        "mean": mean(sorted),
        "p50": quantile(sorted, 0.5),
        "p90": quantile(sorted, 0.9),
        "p99": quantile(sorted, 0.99),
        "max": quantile(sorted, 1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank_over_every_value() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let quantiles = [0.5, 0.9, 0.99, 1.0].map(|share| quantile(&values, share).to_bits());
        assert_eq!(quantiles, [50.0_f64, 90.0, 99.0, 100.0].map(f64::to_bits));
        assert!(quantile(&[], 0.5).abs() < f64::EPSILON);
    }
}
