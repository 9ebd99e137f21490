//! The load that was asked for, validated once.
//!
//! It must not know how it is sent.

use std::time::Duration;

use crate::args::{AskingSecurityArgs, BenchServeArgs};
use crate::exit::Failure;

use super::lengths::Lengths;

/// Most rounds.
const MAX_ROUNDS: u32 = 100;
/// Most requests of one run.
const MAX_REQUESTS: u32 = 1_000_000;
/// A router takes this many streams on one connection; more would queue here unseen.
const MAX_AT_ONCE: u32 = 1_000;

/// How requests arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Arrivals {
    /// So many at once, each followed by the next.
    Closed { concurrency: u32 },
    /// Poisson, so many per second on average.
    Poisson { rate: f64 },
    /// Endless streams, with evenly spaced long prompts beside them.
    Steady {
        streams: u32,
        inject: Option<Injected>,
        duration: Duration,
    },
}

/// Long prompts beside steady streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Injected {
    pub(crate) rate: f64,
    pub(crate) prompt: Lengths,
    pub(crate) output: Lengths,
}

/// A validated plan of load.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) arrivals: Arrivals,
    pub(crate) ttft_target: Option<Duration>,
    pub(crate) itl_target: Option<Duration>,
    pub(crate) connect: Option<String>,
    /// How to reach it.
    pub(crate) security: AskingSecurityArgs,
    pub(crate) requests: u32,
    pub(crate) prompt: Lengths,
    pub(crate) output: Lengths,
    pub(crate) seed: u64,
    /// Rounds of steady streams alone, then disturbed; `None`: the load as it is, once.
    pub(crate) rounds: Option<u32>,
}

/// One run of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// From 1.
    pub(crate) round: u32,
    /// Whether long prompts are injected.
    pub(crate) disturbed: bool,
    pub(crate) plan: Plan,
}

impl Plan {
    /// Checks the arguments.
    pub(crate) fn new(args: &BenchServeArgs) -> Result<Self, Failure> {
        let target =
            |ms: Option<f64>| ms.map(|ms| Duration::from_secs_f64(ms.clamp(0.0, 1e9) / 1000.0));
        Ok(Self {
            arrivals: arrivals(args)?,
            ttft_target: target(args.ttft_target_ms),
            itl_target: target(args.itl_target_ms),
            connect: args.connect.clone(),
            security: args.security.clone(),
            requests: count("--requests", args.requests.unwrap_or(64), MAX_REQUESTS)?,
            prompt: lengths("--prompt-tokens", args.prompt_tokens.as_deref(), "128-512")?,
            output: lengths(
                "--output-tokens",
                args.output_tokens.as_deref(),
                if args.steady.is_some() { "1024" } else { "64" },
            )?,
            seed: args.seed.unwrap_or_else(rand::random),
            rounds: args
                .rounds
                .map(|rounds| count("--rounds", rounds, MAX_ROUNDS))
                .transpose()?,
        })
    }

    /// The runs in order. Each draws its own prompts, for a repeated one would be found in the cache.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let Some(rounds) = self.rounds else {
            let disturbed = matches!(
                self.arrivals,
                Arrivals::Steady {
                    inject: Some(_),
                    ..
                }
            );
            return vec![Run {
                round: 1,
                disturbed,
                plan: self.clone(),
            }];
        };
        let halves = (1..=rounds).flat_map(|round| [(round, false), (round, true)]);
        let runs = halves.zip(0..).map(|((round, disturbed), index)| {
            let mut plan = self.clone();
            plan.seed = self.seed.wrapping_add(index);
            if let Arrivals::Steady { inject, .. } = &mut plan.arrivals
                && !disturbed
            {
                *inject = None;
            }
            Run {
                round,
                disturbed,
                plan,
            }
        });
        runs.collect()
    }
}

fn arrivals(args: &BenchServeArgs) -> Result<Arrivals, Failure> {
    Ok(match (args.steady, args.rate) {
        (Some(streams), _) => {
            let seconds = args.duration.unwrap_or(40.0);
            if !(0.1..=86_400.0).contains(&seconds) {
                return Err(Failure::usage(format!(
                    "--duration is {seconds}, allowed: 0.1 to 86400 seconds"
                )));
            }
            let inject = args.inject.map(|per_second| {
                Ok::<_, Failure>(Injected {
                    rate: rate("--inject", per_second)?,
                    prompt: lengths(
                        "--inject-prompt-tokens",
                        args.inject_prompt_tokens.as_deref(),
                        "1024-2000",
                    )?,
                    output: lengths(
                        "--inject-output-tokens",
                        args.inject_output_tokens.as_deref(),
                        "8",
                    )?,
                })
            });
            Arrivals::Steady {
                streams: count("--steady", streams, MAX_AT_ONCE)?,
                inject: inject.transpose()?,
                duration: Duration::from_secs_f64(seconds),
            }
        }
        (None, Some(per_second)) => Arrivals::Poisson {
            rate: rate("--rate", per_second)?,
        },
        (None, None) => Arrivals::Closed {
            concurrency: count("--concurrency", args.concurrency.unwrap_or(4), MAX_AT_ONCE)?,
        },
    })
}

fn lengths(flag: &str, value: Option<&str>, default: &str) -> Result<Lengths, Failure> {
    Lengths::parse(flag, value.unwrap_or(default))
}

fn rate(flag: &str, value: f64) -> Result<f64, Failure> {
    if value.is_finite() && (0.001..=100_000.0).contains(&value) {
        Ok(value)
    } else {
        Err(Failure::usage(format!(
            "{flag} is {value}, allowed: 0.001 to 100000 per second"
        )))
    }
}

fn count(flag: &str, value: u32, most: u32) -> Result<u32, Failure> {
    if (1..=most).contains(&value) {
        Ok(value)
    } else {
        Err(Failure::usage(format!(
            "{flag} is {value}, allowed: 1 to {most}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_alternate_and_repeat_no_prompt() {
        let mut args = BenchServeArgs {
            steady: Some(4),
            inject: Some(0.5),
            rounds: Some(2),
            seed: Some(u64::MAX),
            ..BenchServeArgs::default()
        };
        let runs = Plan::new(&args).expect("valid").runs();
        let injects = |run: &Run| {
            matches!(
                run.plan.arrivals,
                Arrivals::Steady {
                    inject: Some(_),
                    ..
                }
            )
        };
        let halves: Vec<_> = runs
            .iter()
            .map(|run| (run.round, run.disturbed, injects(run)))
            .collect();
        assert_eq!(
            halves,
            [
                (1, false, false),
                (1, true, true),
                (2, false, false),
                (2, true, true)
            ]
        );
        let seeds: Vec<_> = runs.iter().map(|run| run.plan.seed).collect();
        assert_eq!(seeds, [u64::MAX, 0, 1, 2]);

        args.rounds = None;
        let runs = Plan::new(&args).expect("valid").runs();
        assert_eq!(
            (runs.len(), runs[0].disturbed, injects(&runs[0])),
            (1, true, true)
        );
        args.rounds = Some(0);
        let refused = Plan::new(&args).expect_err("no rounds");
        assert!(
            refused.message().contains("--rounds is 0"),
            "{}",
            refused.message()
        );
    }
}
