//! How long a leg may say nothing.
//!
//! Workers speak at least every half second of every leg that waits where waiting is right, unless their
//! step loop is stuck: whether a leg queues, computes or waits for pages makes no difference here. It must
//! not know what is said.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use baton_cluster::Call;
use baton_proto::ConvertError;
use prost::Message;
use tokio::time::Instant;

use super::{LegFailure, LegRequest};
use crate::lanes::soon;
use crate::workers::{Slot, Worker};

/// Silence of so many recent steps is none: a step may take longer than the configured time.
const STEPS: u32 = 10;
/// Longest silence that steps excuse, whatever a worker reports of them.
const LONGEST: Duration = Duration::from_mins(1);
/// What arrived while this process was held up is still to be read when it goes on.
const LATE: Duration = Duration::from_millis(100);

/// Since when one leg has said nothing.
#[derive(Debug)]
pub(super) struct Silence {
    heard_at: Instant,
    /// Configured time.
    least: Duration,
}

impl Silence {
    /// Begins now.
    fn new(least: Duration) -> Self {
        Self {
            heard_at: Instant::now(),
            least,
        }
    }

    /// Opens a leg with what begins it, and begins to listen. Workers take legs up at once: until then one says
    /// nothing either. It has at most the request's [`LegRequest::open_until`].
    pub(super) async fn open<C, M>(
        slot: &mut Slot,
        request: &LegRequest,
        path: &'static str,
        start: &C,
    ) -> Result<(Call<C, M>, Self), LegFailure>
    where
        C: Message,
        M: Message + Default,
    {
        LegFailure::unless_it_fits(start, slot)?;
        let worker = Arc::clone(slot.worker());
        let opening = worker.links.call(path, request.headers(), start);
        let mut silence = Self::new(request.progress_timeout);
        let until = request.open_until();
        match tokio::time::timeout_at(until, silence.broken(&worker, opening)).await {
            Ok(Ok(Ok(call))) => Ok((call, silence)),
            Ok(Ok(Err(status))) => Err(LegFailure::from_status(slot, &status, request)),
            Ok(Err(_)) | Err(_) => {
                let reason = "it did not accept the leg in time";
                Err(LegFailure::silent(slot, request, reason))
            }
        }
    }

    /// What a leg's worker says next. An end of the stream is a failure, whatever its status, and so is
    /// silence. Cancel-safe.
    pub(super) async fn heard<C, M, E>(
        &mut self,
        slot: &mut Slot,
        request: &LegRequest,
        said: &mut Call<C, M>,
    ) -> Result<E, LegFailure>
    where
        C: Message,
        M: Message + Default,
        E: TryFrom<M, Error = ConvertError>,
    {
        match self.broken(slot.worker(), said.message()).await {
            Ok(Ok(Some(message))) => {
                E::try_from(message).map_err(|error| LegFailure::malformed(slot, &error))
            }
            Ok(Ok(None)) => Err(LegFailure::worker(slot, "it ended without a result")),
            Ok(Err(status)) => Err(LegFailure::from_status(slot, &status, request)),
            Err(limit) => {
                let reason = format!("it made no progress for {limit:?}");
                Err(LegFailure::worker(slot, reason))
            }
        }
    }

    /// Waits for what is said next; an error with the time it would have had if silence lasts too long.
    /// Dropped half way, it can be waited for again, and the silence has gone on.
    async fn broken<T>(
        &mut self,
        worker: &Worker,
        next: impl Future<Output = T>,
    ) -> Result<T, Duration> {
        let mut next = pin!(next);
        let mut limit = self.limit(worker);
        let soon = soon();
        // Half of the time is enough for others to prefer workers that speak.
        let early = tokio::time::timeout_at(self.heard_at + limit / 2, &mut next).await;
        if let Ok(said) = early {
            soon.came();
            self.heard_at = Instant::now();
            return Ok(said);
        }
        drop(soon);
        let _quiet = worker.quiet();
        loop {
            let heard = tokio::time::timeout_at(self.heard_at + limit, &mut next).await;
            if let Ok(said) = heard {
                self.heard_at = Instant::now();
                return Ok(said);
            }
            let longer = self.limit(worker);
            if longer <= limit {
                break;
            }
            limit = longer;
        }
        match tokio::time::timeout(LATE, next).await {
            Ok(said) => {
                self.heard_at = Instant::now();
                Ok(said)
            }
            Err(_) => Err(limit),
        }
    }

    fn limit(&self, worker: &Worker) -> Duration {
        let excused = worker.step_time().saturating_mul(STEPS).min(LONGEST);
        self.least.max(excused)
    }
}
