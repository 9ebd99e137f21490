//! Rounds compared: steady streams alone and with long prompts beside them, over every gap of all rounds.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::statistics::{Median, quantile};

use super::gaps::gaps;
use super::load::Sample;
use super::plan::Run;
use super::report::{Report, distribution, ms};

/// What both kinds of run came to.
pub(crate) struct Comparison {
    seed: u64,
    rounds: Vec<(Run, Report)>,
    alone: Half,
    disturbed: Half,
}

/// All runs of one kind.
struct Half {
    /// Every gap of steady streams, in milliseconds, sorted.
    itl: Vec<f64>,
    /// Tokens per second of the steady streams together, by round.
    steady: Vec<f64>,
    /// Of injected prompts, in milliseconds, sorted.
    ttft: Vec<f64>,
}

impl Comparison {
    /// Of the runs of one plan.
    pub(crate) fn new(seed: u64, runs: &[(Run, Vec<Sample>)]) -> Self {
        let reports = runs
            .iter()
            .map(|(run, samples)| (run.clone(), Report::new(samples, &run.plan)));
        Self {
            seed,
            rounds: reports.collect(),
            alone: Half::new(runs, false),
            disturbed: Half::new(runs, true),
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let rounds = self.rounds.iter().map(|(run, report)| {
            let mut report = report.json();
            report["round"] = run.round.into();
            report["disturbed"] = run.disturbed.into();
            report
        });
        json!({
            "seed": self.seed,
            "runs": rounds.collect::<Vec<_>>(),
            "summary": {
                "itl_ms": {
                    "alone": distribution(&self.alone.itl),
                    "disturbed": distribution(&self.disturbed.itl),
                },
                "itl_p99_ratio": self.p99_ratio(),
                "steady_tok_s": {
                    "alone": self.alone.rate(),
                    "disturbed": self.disturbed.rate(),
                },
                "steady_kept": self.kept(),
                "injected_ttft_ms": distribution(&self.disturbed.ttft),
            },
        })
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{} rounds, seed {}\n",
            self.rounds.len() / 2,
            self.seed
        );
        let _ = writeln!(
            text,
            "{:<24}{:>12}{:>12}{:>10}",
            "", "alone", "disturbed", "ratio"
        );
        let halves = [&self.alone, &self.disturbed];
        for (name, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            let [alone, disturbed] = halves.map(|half| quantile(&half.itl, share));
            line(&mut text, &format!("ITL {name}, ms"), alone, disturbed);
        }
        line(
            &mut text,
            "steady tok/s",
            self.alone.rate(),
            self.disturbed.rate(),
        );
        let ttft = &self.disturbed.ttft;
        let _ = writeln!(
            text,
            "injected prompts: {}, TTFT p50 {:.0} ms, p99 {:.0} ms",
            ttft.len(),
            quantile(ttft, 0.5),
            quantile(ttft, 0.99),
        );
        for (run, report) in &self.rounds {
            let kind = if run.disturbed { "disturbed" } else { "alone" };
            let _ = write!(text, "\nround {}, {kind}: {}", run.round, report.text());
        }
        text
    }

    fn p99_ratio(&self) -> f64 {
        ratio(
            quantile(&self.alone.itl, 0.99),
            quantile(&self.disturbed.itl, 0.99),
        )
    }

    fn kept(&self) -> f64 {
        ratio(self.alone.rate(), self.disturbed.rate())
    }
}

fn line(text: &mut String, name: &str, alone: f64, disturbed: f64) {
    let ratio = ratio(alone, disturbed);
    let _ = writeln!(
        text,
        "{name:<24}{alone:>12.1}{disturbed:>12.1}{ratio:>10.2}"
    );
}

fn ratio(alone: f64, disturbed: f64) -> f64 {
    if alone > 0.0 { disturbed / alone } else { 0.0 }
}

impl Half {
    fn new(runs: &[(Run, Vec<Sample>)], disturbed: bool) -> Self {
        let mut half = Self {
            itl: Vec::new(),
            steady: Vec::new(),
            ttft: Vec::new(),
        };
        for (_, samples) in runs.iter().filter(|(run, _)| run.disturbed == disturbed) {
            let mut last = Duration::ZERO;
            let mut tokens = 0;
            for sample in samples {
                if sample.steady {
                    half.itl.extend(gaps(sample).map(|(_, gap)| ms(gap)));
                    tokens += sample.tokens.len();
                    let end = sample.tokens.last().map(|end| sample.start + *end);
                    last = last.max(end.unwrap_or_default());
                } else {
                    half.ttft
                        .extend(sample.tokens.first().map(|first| ms(*first)));
                }
            }
            if !last.is_zero() {
                half.steady.push(tokens as f64 / last.as_secs_f64());
            }
        }
        half.itl.sort_by(f64::total_cmp);
        half.ttft.sort_by(f64::total_cmp);
        half
    }

    fn rate(&self) -> f64 {
        Median::of(self.steady.iter().copied()).value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::BenchServeArgs;
    use crate::bench::serve::plan::Plan;

    fn sample(steady: bool, start_ms: u64, tokens_ms: &[u64]) -> Sample {
        Sample {
            steady,
            start: Duration::from_millis(start_ms),
            tokens: tokens_ms
                .iter()
                .copied()
                .map(Duration::from_millis)
                .collect(),
            prompt_tokens: 8,
            error: None,
        }
    }

    #[test]
    fn a_summary_is_over_every_gap_of_all_rounds() {
        let args = BenchServeArgs {
            steady: Some(1),
            inject: Some(1.0),
            rounds: Some(2),
            seed: Some(1),
            ..BenchServeArgs::default()
        };
        let plan = Plan::new(&args).expect("valid");
        let samples = [
            vec![sample(true, 0, &[100, 110, 120, 200])],
            vec![
                sample(true, 0, &[100, 120, 140, 400]),
                sample(false, 50, &[500, 501]),
            ],
            vec![sample(true, 0, &[50, 60, 100])],
            vec![sample(true, 0, &[50, 200]), sample(false, 60, &[700])],
        ];
        let runs: Vec<_> = plan.runs().into_iter().zip(samples).collect();
        let comparison = Comparison::new(1, &runs);
        let summary = &comparison.json()["summary"];
        assert_eq!(summary["itl_ms"]["alone"]["count"], 5);
        assert_eq!(summary["itl_ms"]["alone"]["max"], 80.0);
        assert_eq!(
            summary["itl_ms"]["disturbed"]["count"], 4,
            "injected requests' gaps are not steady"
        );
        assert_eq!(summary["itl_ms"]["disturbed"]["max"], 260.0);
        assert_eq!(summary["itl_p99_ratio"], 260.0 / 80.0);
        // 4 tokens in 0.2 s and 3 in 0.1 s; 4 in 0.4 s and 2 in 0.2 s.
        assert_eq!(summary["steady_tok_s"]["alone"], 25.0);
        assert_eq!(summary["steady_tok_s"]["disturbed"], 10.0);
        assert_eq!(summary["steady_kept"], 0.4);
        assert_eq!(summary["injected_ttft_ms"]["p50"], 500.0);
        assert_eq!(summary["injected_ttft_ms"]["max"], 700.0);
        assert_eq!(comparison.json()["runs"].as_array().map(Vec::len), Some(4));
        for part in [
            "2 rounds",
            "ITL p99",
            "round 2, disturbed",
            "TTFT p50 500 ms",
        ] {
            assert!(
                comparison.text().contains(part),
                "no {part:?} in {}",
                comparison.text()
            );
        }
    }
}
