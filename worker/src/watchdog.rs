//! Tells probes when the step thread stands still: first not ready, then not live.
//!
//! A thread that waits for work moves, as one does that finishes a layer; only one that does neither stands
//! still. It must not know what holds it up.

use std::time::Duration;

use tokio::time::Interval;

use crate::Worker;
use crate::options::DEAD_AFTER;
use crate::server::Health;

/// Looks in the time in which standing still becomes a fault.
const LOOKS: u32 = 5;

/// What probes have been told, and why.
pub(crate) struct Watchdog {
    stuck_after: Duration,
    looks: Interval,
    placeable: bool,
    stuck: bool,
}

impl Watchdog {
    /// With a worker that is not placeable yet.
    pub(crate) fn new(stuck_after: Duration) -> Self {
        Self {
            stuck_after,
            looks: tokio::time::interval((stuck_after / LOOKS).max(Duration::from_millis(1))),
            placeable: false,
            stuck: false,
        }
    }

    /// Whether the worker may be placed, as far as its registration goes.
    pub(crate) async fn placeable(&mut self, health: &Health, placeable: bool) {
        self.placeable = placeable;
        health.set_ready(placeable && !self.stuck).await;
    }

    /// Resolves when it is time to look.
    pub(crate) async fn next(&mut self) {
        self.looks.tick().await;
    }

    /// Looks at the step thread.
    pub(crate) async fn look(&mut self, worker: &Worker, health: &Health) {
        let still = worker.still_since();
        let stuck = still >= self.stuck_after;
        if stuck != self.stuck {
            self.stuck = stuck;
            let load = worker.load(Vec::new());
            let legs = worker.legs();
            if stuck {
                tracing::error!(
                    ?still,
                    legs,
                    ?load,
                    "the step thread stands still: not ready"
                );
            } else {
                tracing::warn!("the step thread moves again");
                health.set_live(true).await;
            }
            health.set_ready(self.placeable && !stuck).await;
        }
        if still >= self.stuck_after * DEAD_AFTER {
            health.set_live(false).await;
        }
    }
}
