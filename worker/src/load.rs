//! When a load report is due: on change, but not more often than a bound, and at least every second.
//!
//! It must not know who reads the reports.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::WorkerLoad;
use baton_scheduler::StepHandle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Role;

/// A report is due this long after the one before, even if nothing changed.
const AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// Changes within this time share one report: steps may take less than a millisecond.
const AT_MOST_EVERY: Duration = Duration::from_millis(20);

/// Yields load reports of one worker, the first at once.
pub(crate) struct LoadReports<R> {
    role: Arc<R>,
    steps: StepHandle,
    drain: watch::Receiver<bool>,
    last: Option<(Instant, WorkerLoad)>,
}

impl<R: Role> LoadReports<R> {
    pub(crate) fn new(role: Arc<R>) -> Self {
        let steps = role.worker().steps().clone();
        let drain = role.worker().watch_drain();
        Self {
            role,
            steps,
            drain,
            last: None,
        }
    }

    /// The next report that is due.
    pub(crate) async fn next(&mut self) -> WorkerLoad {
        while let Some((sent, load)) = &self.last {
            tokio::time::sleep_until(*sent + AT_MOST_EVERY).await;
            let due = tokio::time::sleep_until(*sent + AT_LEAST_EVERY);
            let forced = tokio::select! {
                () = self.steps.changed() => false,
                Ok(()) = self.drain.changed() => true,
                () = due => true,
            };
            if forced || !same(load, &self.role.load()) {
                break;
            }
        }
        let load = self.role.load();
        self.last = Some((Instant::now(), load.clone()));
        load
    }
}

/// Whether two reports tell a router the same; counters and step times alone are no news.
fn same(before: &WorkerLoad, now: &WorkerLoad) -> bool {
    (
        before.queued,
        before.running,
        before.queued_tokens,
        before.pages,
        before.draining,
    ) == (
        now.queued,
        now.running,
        now.queued_tokens,
        now.pages,
        now.draining,
    )
}
