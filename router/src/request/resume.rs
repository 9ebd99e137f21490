//! Going on after setbacks: which worker is left alone, how often and how long it is tried again, and
//! where the next attempt begins.
//!
//! Failures are counted since the last token that went out, so that a long stream may outlive any number
//! of workers, and one that gets nowhere ends. It must not know how a request is served.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::WorkerRole;
use tokio::time::Instant;

use super::task::RequestTask;
use crate::counters::Counters;
use crate::error::RequestError;
use crate::legs::{FailureKind, LegFailure};
use crate::workers::{Excluded, NotPlaced};

/// How far ahead of the router's a worker's clock for one deadline may be.
const DEADLINE_SKEW: Duration = Duration::from_millis(250);

/// What has gone wrong since the last token went out.
#[derive(Debug, Default)]
pub(super) struct Setbacks {
    /// Failures of workers.
    failures: u32,
    /// Tokens sent when the last setback came.
    tokens: u64,
    /// End of the patience that begins with a failure.
    patient_until: Option<Instant>,
    /// The last one, over the whole request.
    last: Option<LegFailure>,
}

impl RequestTask {
    /// Notes a leg's failure; an error if the request cannot go on.
    pub(super) fn set_back(&mut self, failure: LegFailure) -> Result<(), RequestError> {
        self.receipt
            .failed(failure.worker.0.as_str(), &failure.reason);
        let LegFailure {
            worker,
            kind,
            reason,
        } = failure.clone();
        let tokens = self.output.tokens();
        tracing::warn!(request_id = self.request.request_id, worker = %worker.0, reason, tokens, "leg failed");
        if tokens > self.setbacks.tokens {
            self.setbacks = Setbacks {
                tokens,
                ..Setbacks::default()
            };
            self.excluded = Excluded::default();
        }
        self.setbacks.last = Some(failure);
        match kind {
            FailureKind::Request => return Err(RequestError::Refused(reason)),
            FailureKind::Model => return Err(RequestError::Model(reason)),
            FailureKind::Deadline if self.is_nearly_over() => return Err(self.deadline_error()),
            FailureKind::Busy(hint) => {
                self.be_patient(false);
                self.excluded.busy.insert(worker, hint);
            }
            FailureKind::Away => {
                self.be_patient(false);
                self.excluded.failed.insert(worker);
            }
            FailureKind::Deadline | FailureKind::HandOff | FailureKind::Worker => {
                self.be_patient(true);
                self.excluded.hand_offs += u32::from(kind == FailureKind::HandOff);
                self.setbacks.failures += 1;
                let attempts = self.setbacks.failures;
                if attempts >= self.shared.config.max_attempts {
                    return Err(RequestError::Attempts {
                        attempts,
                        last: reason,
                    });
                }
                self.excluded.failed.insert(worker);
            }
        }
        Ok(())
    }

    /// Notes that no decode worker of a prefill worker's fingerprint granted pages, and who was asked: the next
    /// attempt goes to others. Nobody is to blame, so it is not counted; each time, the wait for a grant has
    /// passed or the last worker of a fingerprint has gone.
    pub(super) fn go_elsewhere(&mut self, asked: Excluded) {
        let prefill = self.receipt.last_prefill();
        let reason = "no decode worker of its fingerprint granted pages";
        self.receipt.failed(&prefill, reason);
        tracing::info!(
            request_id = self.request.request_id,
            worker = prefill,
            reason,
            "going elsewhere"
        );
        self.be_patient(false);
        self.excluded.add(asked);
    }

    /// Time for workers to come back begins now: anew with each of the failures, which are counted, and
    /// once for refusals, which are not.
    fn be_patient(&mut self, anew: bool) {
        let until = Instant::now() + self.shared.config.grant_wait;
        let patient_until = &mut self.setbacks.patient_until;
        if anew || patient_until.is_none() {
            *patient_until = Some(until);
        }
    }

    /// Until when it is worth waiting for workers. A request that has found nobody at its first try is
    /// refused at once, unless all decode workers were there a moment ago. One that has been let down may wait for decode workers to come back, and one
    /// that has begun to answer for anybody; where workers are merely full, until its deadline.
    pub(super) fn worth_waiting(&self, not_placed: &NotPlaced) -> Option<Instant> {
        if self.output.tokens() > 0 && not_placed.busy_hint.is_some() {
            return Some(self.request.deadline);
        }
        let may_change = not_placed.role == WorkerRole::Decode && not_placed.never_fits.is_none();
        self.setbacks
            .patient_until
            .filter(|_| may_change || self.output.tokens() > 0)
            .or_else(|| {
                let expected = self.shared.directory.decode_expected_until();
                expected.filter(|_| may_change)
            })
    }

    /// Lets the next attempt begin after what the client has been sent. Legs of one attempt all begin
    /// at the same place, so this happens before any opens and never between. False: nothing has been
    /// sent since the last attempt began.
    pub(super) fn go_on_from_here(&mut self) -> bool {
        if self.output.tokens() == self.kept {
            return false;
        }
        self.kept = self.output.tokens();
        let completions = self.output.so_far();
        self.wanted = Arc::new(self.wanted.after(&completions));
        Arc::make_mut(&mut self.request).completions = completions;
        true
    }

    /// Says in the receipt that an attempt goes on, and counts it.
    pub(super) fn note_resume(&mut self, reason: String) -> String {
        if self.kept == 0 {
            return reason;
        }
        Counters::add(&self.shared.counters.resumes);
        let (request_id, kept) = (&self.request.request_id, self.kept);
        tracing::info!(request_id, kept, reason, "resuming");
        self.receipt.resumed(kept);
        format!("resume: {kept} tokens kept; {reason}")
    }

    /// An error in the words of a client that has had part of an answer: who was lost, and why nobody
    /// goes on.
    pub(super) fn with_what_was_lost(&self, error: RequestError) -> RequestError {
        let is_for_want_of_workers = matches!(
            error,
            RequestError::NoWorker { .. }
                | RequestError::Overloaded { .. }
                | RequestError::Attempts { .. }
                | RequestError::NeverFits { .. }
        );
        match &self.setbacks.last {
            Some(last) if is_for_want_of_workers && self.output.tokens() > 0 => {
                RequestError::WorkerLost {
                    worker: last.worker.0.to_string(),
                    tokens: self.output.tokens(),
                    reason: format!("{}; then: {error}", last.reason),
                }
            }
            _ => error,
        }
    }

    pub(super) fn deadline_error(&self) -> RequestError {
        let decoding = self.output.first_at().is_some();
        RequestError::Deadline {
            doing: if decoding { "decoding" } else { "prefilling" },
        }
    }

    /// Workers count the same deadline and may be a little ahead.
    fn is_nearly_over(&self) -> bool {
        self.request
            .deadline
            .saturating_duration_since(Instant::now())
            < DEADLINE_SKEW
    }
}
