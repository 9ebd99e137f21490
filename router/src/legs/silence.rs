//! How long a leg may say nothing.
//!
//! Workers speak at least every half second of every leg that waits where waiting is right, unless their
//! step loop is stuck: whether a leg queues, computes or waits for pages makes no difference here. It must
//! not know what is said.

use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::workers::Worker;

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
    pub(super) fn new(least: Duration) -> Self {
        Self {
            heard_at: Instant::now(),
            least,
        }
    }

    /// Waits for what is said next; an error with the time it would have had if silence lasts too long.
    /// Dropped half way, it can be waited for again, and the silence has gone on.
    pub(super) async fn broken<T>(
        &mut self,
        worker: &Worker,
        next: impl Future<Output = T>,
    ) -> Result<T, Duration> {
        let mut next = pin!(next);
        let mut limit = self.limit(worker);
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
