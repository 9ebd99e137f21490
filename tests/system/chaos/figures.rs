//! What a run of chaos comes to: counts, gaps, memory. It knows nothing of how they came about.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_proto::v1::{PlacementAttempt, Receipt};

use super::faults::{Deed, Kind, Target};
use super::fleet::Role;
use super::load::Gaps;

/// What clients count.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) answered: u64,
    pub(super) failed: u64,
    /// Answers, whole or in part, that were not the undisturbed one's.
    pub(super) changed: u64,
    /// Streams that ended with their router's life.
    pub(super) cut: u64,
    /// Calls that a dying or leaving router did not take.
    pub(super) refused: u64,
    /// Streams whose own router was stopped or drained meanwhile; their gaps say nothing of workers.
    router_disturbed: u64,
    /// Of answers with an attempt that failed.
    disturbed: Vec<Gaps>,
    /// The disturbed answer that had the longest time without an event.
    slowest: Option<(Gaps, Vec<PlacementAttempt>)>,
    /// Of all others.
    calm: Vec<Gaps>,
}

impl Tally {
    /// Counts an answer and its gaps.
    pub(super) fn book(&mut self, gaps: Gaps, receipt: &Receipt, router_was_calm: bool) {
        let attempts = &receipt.attempts;
        let disturbed = attempts.iter().any(|one| !one.failure.is_empty());
        self.answered += 1;
        if !router_was_calm {
            self.router_disturbed += 1;
        } else if disturbed {
            self.disturbed.push(gaps);
            let slowest = self.slowest.as_ref().map(|(gaps, _)| gaps.longest());
            if slowest.is_none_or(|slowest| slowest < gaps.longest()) {
                self.slowest = Some((gaps, attempts.clone()));
            }
        } else {
            self.calm.push(gaps);
        }
    }

    /// Answers that needed more than one attempt.
    pub(super) fn disturbed(&self) -> usize {
        self.disturbed.len()
    }

    pub(super) fn print(&self) {
        println!(
            "requests            {} ({} answered, {} failed, {} changed)",
            self.requests, self.answered, self.failed, self.changed
        );
        println!(
            "lost with a router  {} streams cut and {} calls not taken, sent again to the other router",
            self.cut, self.refused
        );
        println!(
            "disturbed           {} answers by workers, {} by their own router",
            self.disturbed.len(),
            self.router_disturbed
        );
        for (what, all) in [("disturbed", &self.disturbed), ("others", &self.calm)] {
            print_times(what, "longest gap", all.iter().map(|gaps| gaps.after));
            print_times(what, "first token", all.iter().map(|gaps| gaps.before));
        }
        if let Some((gaps, attempts)) = &self.slowest {
            println!("slowest disturbed   {gaps:?}");
            for one in attempts {
                println!(
                    "  attempt {} {} {}: {}; {}",
                    one.attempt, one.prefill_worker, one.decode_worker, one.reason, one.failure
                );
            }
        }
    }
}

fn print_times(of: &str, what: &str, times: impl Iterator<Item = Duration>) {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    let Some(longest) = times.last() else {
        return;
    };
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_millis();
    let (p50, p99, max) = (at(50), at(99), longest.as_millis());
    println!("{what}, {of:<9}  p50 {p50} ms, p99 {p99} ms, max {max} ms");
}

/// Prints how often each kind of fault was survived.
pub(super) fn print_faults(survived: &BTreeMap<Kind, usize>) {
    let all: usize = survived.values().sum();
    println!("faults survived     {all}");
    for ((target, deed), count) in survived {
        let target = match target {
            Target::Member(Role::Router) => "router",
            Target::Member(Role::Prefill) => "prefill worker",
            Target::Member(Role::Decode) => "decode worker",
            Target::Etcd => "etcd",
        };
        let deed = match deed {
            Deed::Kill => "killed",
            Deed::Replace => "killed, replaced at its address",
            Deed::Stop => "stopped for a while",
            Deed::Drain => "drained and replaced",
        };
        println!("  {count:>4}  {target} {deed}");
    }
}

/// Resident memory by class of process.
#[derive(Debug, Default)]
pub(super) struct Memory(BTreeMap<&'static str, Vec<(Duration, u64)>>);

impl Memory {
    /// MiB of one process at one time.
    pub(super) fn book(&mut self, class: &'static str, at: Duration, mib: u64) {
        self.0.entry(class).or_default().push((at, mib));
    }

    /// Prints each class's mean of the first and the last third, and gives the classes that grew by more
    /// than half and by more than `slack_mib`.
    pub(super) fn print(&self, whole: Duration, slack_mib: f64) -> Vec<String> {
        let mut grown = Vec::new();
        for (class, samples) in &self.0 {
            let mean = |wanted: &dyn Fn(Duration) -> bool| {
                let chosen: Vec<_> = samples.iter().filter(|(at, _)| wanted(*at)).collect();
                let sum: u64 = chosen.iter().map(|(_, mib)| mib).sum();
                sum as f64 / chosen.len().max(1) as f64
            };
            let first = mean(&|at| at < whole / 3);
            let last = mean(&|at| at >= whole * 2 / 3);
            let most = samples.iter().map(|(_, mib)| mib).max().unwrap_or(&0);
            let line = format!("{class} {first:.1} MiB to {last:.1} MiB, most {most} MiB");
            println!("memory              {line}");
            if last > first * 1.5 + slack_mib {
                grown.push(line);
            }
        }
        grown
    }
}
