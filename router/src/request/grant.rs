//! Finding pages for a prompt that is being computed: a decode worker chosen now, with fresh load,
//! another one if it refuses, and round again until the wait is over or, in an upgrade, none is left that the
//! prefill worker can be paired with.
//!
//! It must not know the prefill leg.

use std::sync::Arc;
use std::time::Duration;

use baton_cluster::Backoff;
use baton_proto::domain::Grant;
use baton_proto::ids::Attempt;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::setback::Setback;
use crate::counters::Counters;
use crate::error::RequestError;
use crate::legs::{DecodeLeg, FailureKind, LegFailure, LegRequest};
use crate::shared::Shared;
use crate::workers::{Excluded, NotPlaced, Wanted};

/// A search in progress. Dropping it ends the leg that it may have open.
pub(super) type Negotiation = BoxFuture<'static, Result<(DecodeLeg, Grant), Setback>>;

/// What a search is for.
pub(super) struct GrantSearch {
    pub(super) shared: Arc<Shared>,
    pub(super) request: Arc<LegRequest>,
    pub(super) wanted: Arc<Wanted>,
    /// Fingerprint digest of the prefill worker.
    pub(super) digest: [u8; 32],
    pub(super) attempt: Attempt,
    /// Decode workers that failed this request before.
    pub(super) excluded: Excluded,
}

impl GrantSearch {
    pub(super) fn start(self) -> Negotiation {
        Box::pin(self.run())
    }

    async fn run(mut self) -> Result<(DecodeLeg, Grant), Setback> {
        let patient_until = Instant::now() + self.shared.config.grant_wait;
        let mut backoff = Backoff::new(Duration::from_millis(25), Duration::from_millis(500));
        let mut hint = None;
        loop {
            let not_placed =
                match self
                    .shared
                    .directory
                    .place_decode(&self.wanted, &self.digest, &self.excluded)
                {
                    Ok(slot) => {
                        match DecodeLeg::open_granted(slot, &self.request, self.attempt).await {
                            Ok(granted) => return Ok(granted),
                            Err(failure) => self.note(failure, &mut hint)?,
                        }
                        continue;
                    }
                    Err(not_placed) => not_placed,
                };
            let delay = backoff.delay();
            // What has begun to answer waits for room as long as its client does.
            let until = match hint {
                Some(_) if self.request.has_begun() => self.request.deadline,
                _ => patient_until,
            };
            let next = Instant::now() + delay;
            let is_vain = not_placed.never_fits.is_some();
            // Workers of another fingerprint cost a prefill of their own.
            if not_placed.elsewhere && (is_vain || not_placed.nobody || next >= patient_until) {
                return Err(Setback::NoGrant(Box::new(self.excluded)));
            }
            if is_vain || next >= until {
                return Err(self.give_up(not_placed, hint).into());
            }
            tokio::time::sleep(delay).await;
            self.excluded.clear();
        }
    }

    /// A refusal or failure of one worker: try another.
    fn note(&mut self, failure: LegFailure, hint: &mut Option<Duration>) -> Result<(), Setback> {
        let (request_id, worker) = (&self.request.request_id, &failure.worker.0);
        tracing::debug!(request_id, %worker, reason = failure.reason, "no grant");
        match failure.kind {
            FailureKind::Deadline if self.request.is_over() => return Err(failure.into()),
            FailureKind::Request => return Err(RequestError::Refused(failure.reason).into()),
            FailureKind::Model => return Err(RequestError::Model(failure.reason).into()),
            FailureKind::Busy(after) => {
                Counters::add(&self.shared.counters.decode_refusals);
                *hint = (*hint).max(Some(after.unwrap_or(Duration::from_millis(500))));
                self.excluded.busy.insert(failure.worker, after);
            }
            FailureKind::Away
            | FailureKind::Deadline
            | FailureKind::HandOff
            | FailureKind::Worker => {
                self.excluded.failed.insert(failure.worker);
            }
        }
        Ok(())
    }

    fn give_up(&self, not_placed: NotPlaced, hint: Option<Duration>) -> RequestError {
        match hint {
            Some(retry_after) if not_placed.never_fits.is_none() => RequestError::Overloaded {
                what: format!(
                    "no decode worker granted pages within {:?}",
                    self.shared.config.grant_wait
                ),
                retry_after,
            },
            _ => not_placed.into(),
        }
    }
}
