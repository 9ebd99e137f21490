//! The receipt, filled as the request goes.
//!
//! It must not know why anything took its time.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::legs::{DecodeReport, PrefillReport, Scheduled};
use baton_proto::v1;
use tokio::time::Instant;

use super::output::Output;
use super::trace::RequestTrace;
use crate::recent::Record;

/// Attempts kept of the first and of the last ones: a receipt goes into one message, and a request that waits for
/// room may go on trying for as long as its client waits.
const KEPT_ATTEMPTS: usize = 32;

/// A receipt in the making.
#[derive(Debug)]
pub(super) struct ReceiptBuilder {
    /// What operators see of it.
    record: Arc<Record>,
    received: Instant,
    receipt: v1::Receipt,
    /// When the worker said that the prompt is being computed.
    scheduled_at: Option<Instant>,
    prefill_reported: bool,
    /// Tokens that the current attempt goes on after: what it measures is not how the answer began.
    kept_tokens: u64,
    /// The same as spans.
    pub(super) trace: RequestTrace,
}

impl ReceiptBuilder {
    pub(super) fn new(
        record: &Arc<Record>,
        trace: RequestTrace,
        received: Instant,
        request_id: &str,
        label: &str,
        seed: u64,
    ) -> Self {
        let receipt = v1::Receipt {
            request_id: request_id.to_owned(),
            request_label: label.to_owned(),
            seed,
            admission_us: micros(received.elapsed()),
            ..v1::Receipt::default()
        };
        Self {
            record: Arc::clone(record),
            received,
            receipt,
            scheduled_at: None,
            prefill_reported: false,
            kept_tokens: 0,
            trace,
        }
    }

    pub(super) fn attempt(&mut self, attempt: u32, prefill: &str, decode: &str, reason: &str) {
        let attempt = v1::PlacementAttempt {
            attempt,
            prefill_worker: prefill.to_owned(),
            decode_worker: decode.to_owned(),
            reason: reason.to_owned(),
            failure: String::new(),
            kept_tokens: self.kept_tokens,
        };
        self.record.attempt(&attempt);
        self.trace.attempt(&attempt);
        keep(attempt, &mut self.receipt.attempts);
    }

    /// The attempts from here on go on after so many tokens. Phases are told of the first token's way;
    /// later attempts fill in only what is missing.
    pub(super) fn resumed(&mut self, kept_tokens: u64) {
        self.kept_tokens = kept_tokens;
    }

    fn is_resumed(&self) -> bool {
        self.kept_tokens > 0
    }

    /// The decode worker of the last attempt, chosen late.
    pub(super) fn decode_worker(&mut self, name: &str, reused_tokens: u32) {
        if !self.is_resumed() {
            self.receipt.decode_cached_tokens = reused_tokens;
        }
        self.record.granted(name);
        self.trace.granted(name, reused_tokens);
        if let Some(attempt) = self.receipt.attempts.last_mut() {
            name.clone_into(&mut attempt.decode_worker);
        }
    }

    /// The pages have landed.
    pub(super) fn landed(&self) {
        self.record.landed();
    }

    /// The attempt that has just begun goes on with a prefill that is under way.
    pub(super) fn prefill_goes_on(&self) {
        self.record.scheduled();
    }

    /// Why the last attempt ended.
    pub(super) fn failed(&mut self, worker: &str, reason: &str) {
        if let Some(attempt) = self.receipt.attempts.last_mut() {
            attempt.failure = format!("{worker}: {reason}");
            self.record.failed(&attempt.failure);
            self.trace.failed(&attempt.failure);
        }
    }

    /// Prefill worker and reason of the last attempt, for one that only replaces its grant.
    pub(super) fn last_prefill(&self) -> String {
        self.receipt
            .attempts
            .last()
            .map_or_else(String::new, |a| a.prefill_worker.clone())
    }

    pub(super) fn scheduled(&mut self, scheduled: Scheduled) {
        self.record.scheduled();
        if self.is_resumed() {
            return;
        }
        self.scheduled_at = Some(Instant::now());
        self.receipt.queue_us = micros(scheduled.queue);
        self.receipt.cached_tokens = scheduled.cached_tokens;
    }

    pub(super) fn prefill(&mut self, report: &PrefillReport) {
        if report.transfer_bytes > 0 {
            self.record.transferred(report.transfer);
        }
        if self.is_resumed() {
            return;
        }
        self.prefill_reported = true;
        self.receipt.prefill_us = micros(report.prefill);
        self.receipt.grant_wait_us = micros(report.grant_wait);
        self.receipt.transfer_us = micros(report.transfer);
        self.receipt.transfer_bytes = report.transfer_bytes;
        if report.transfer_bytes > 0 {
            let early = report.bytes_before_last_step as f64 / report.transfer_bytes as f64;
            self.receipt.transfer_overlap = early as f32;
        }
        self.receipt.transport = report
            .transport
            .map_or_else(String::new, |transport| transport.as_str().to_owned());
    }

    pub(super) fn decode(&mut self, report: DecodeReport, local: bool) {
        self.receipt.preemptions += report.preemptions;
        if self.is_resumed() {
            return;
        }
        self.receipt.landing_us = micros(report.landing);
        if local {
            self.prefill_reported = true;
            self.receipt.prefill_us = micros(report.prefill);
        }
    }

    pub(super) fn cached_tokens(&self) -> u32 {
        self.receipt.cached_tokens
    }

    /// The receipt, and the spans of the request, which goes on until its client has it.
    pub(super) fn build(mut self, output: &Output) -> (v1::Receipt, RequestTrace) {
        let end_to_end = self.received.elapsed();
        let first_at = output.first_at().unwrap_or_else(Instant::now);
        let ttft = first_at - self.received;
        // A leg that was cut short by a stop string did not report; what the router saw comes close.
        if let (false, Some(scheduled_at)) = (self.prefill_reported, self.scheduled_at) {
            self.receipt.prefill_us = micros(first_at.saturating_duration_since(scheduled_at));
        }
        self.receipt.ttft_us = micros(ttft);
        self.receipt.end_to_end_us = micros(end_to_end);
        let gaps = output.longest().saturating_sub(1);
        self.receipt.itl_mean_us = micros(end_to_end.saturating_sub(ttft))
            .checked_div(gaps)
            .unwrap_or(0);
        self.receipt.itl_max_us = micros(output.longest_gap());
        self.record.receipt(&self.receipt);
        (self.receipt, self.trace)
    }
}

/// Keeps the newest attempt, and in its place none of the middle ones; their numbers tell that some are missing.
fn keep(attempt: v1::PlacementAttempt, attempts: &mut Vec<v1::PlacementAttempt>) {
    if attempts.len() >= 2 * KEPT_ATTEMPTS {
        attempts.remove(KEPT_ATTEMPTS);
    }
    attempts.push(attempt);
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_keeps_the_first_and_the_last_attempts() {
        let mut attempts = Vec::new();
        let last = 20_000;
        for attempt in 1..=last {
            let attempt = v1::PlacementAttempt {
                attempt,
                ..v1::PlacementAttempt::default()
            };
            keep(attempt, &mut attempts);
        }
        let kept: Vec<u32> = attempts.iter().map(|one| one.attempt).collect();
        let some = KEPT_ATTEMPTS as u32;
        let expected: Vec<u32> = (1..=some).chain(last - some + 1..=last).collect();
        assert_eq!(kept, expected);
    }
}
