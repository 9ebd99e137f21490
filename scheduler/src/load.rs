//! What the step loop shows to the outside. It must not know who looks.

use std::time::Duration;

use baton_kv_cache::Ledger;

/// What the loop shows to the outside, refreshed after each step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadSnapshot {
    /// Requests waiting (preempted ones included).
    pub queued: u32,
    /// Choices running.
    pub running: u32,
    /// Prompt tokens not computed yet.
    pub queued_tokens: u64,
    /// The page ledger.
    pub ledger: Ledger,
    /// Median of recent steps, microseconds.
    pub step_us: u32,
    /// Steps since start.
    pub steps: u64,
    /// Tokens sampled since start.
    pub tokens: u64,
    /// Preemptions since start.
    pub preemptions: u64,
    /// Sequences cancelled since start.
    pub cancelled: u64,
    /// Pages evicted since start.
    pub evicted: u64,
    /// Prefix-hit tokens since start.
    pub prefix_hit_tokens: u64,
}

/// Steps that the median looks back on.
const RECENT_STEPS: usize = 64;

/// Durations of recent steps.
#[derive(Debug, Default)]
pub(crate) struct StepTimes {
    recent_us: Vec<u32>,
    next: usize,
}

impl StepTimes {
    pub(crate) fn record(&mut self, elapsed: Duration) {
        let elapsed_us = elapsed.as_micros().min(u128::from(u32::MAX)) as u32;
        if self.recent_us.len() < RECENT_STEPS {
            self.recent_us.push(elapsed_us);
        } else {
            self.recent_us[self.next] = elapsed_us;
        }
        self.next = (self.next + 1) % RECENT_STEPS;
    }

    /// Median in microseconds; 0 before the first step.
    pub(crate) fn median_us(&self) -> u32 {
        let mut sorted = self.recent_us.clone();
        let middle = sorted.len() / 2;
        if sorted.is_empty() {
            return 0;
        }
        *sorted.select_nth_unstable(middle).1
    }
}
