//! How well the router's view of etcd stands: its age, and what it has met.
//!
//! It must not know who reads it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Figures for operators.
#[derive(Debug)]
pub(crate) struct Standing {
    started: Instant,
    /// Milliseconds from the start to the last sign of life of etcd.
    heard_ms: AtomicU64,
    listed: AtomicU64,
    full_reads: AtomicU64,
    invalid: AtomicU64,
    fenced: AtomicU64,
}

impl Standing {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            heard_ms: AtomicU64::new(0),
            listed: AtomicU64::new(0),
            full_reads: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
        }
    }

    /// etcd has answered just now.
    pub(super) fn heard(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        self.heard_ms.store(now, Ordering::Relaxed);
    }

    /// The whole prefix has been read.
    pub(super) fn full_read(&self) {
        self.full_reads.fetch_add(1, Ordering::Relaxed);
    }

    /// So many valid entries are listed now.
    pub(super) fn list(&self, entries: usize) {
        self.listed.store(entries as u64, Ordering::Relaxed);
    }

    /// An entry was skipped.
    pub(super) fn skip(&self) {
        self.invalid.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody else answered where a worker should be.
    pub(super) fn fence(&self) {
        self.fenced.fetch_add(1, Ordering::Relaxed);
    }

    /// Time since etcd has last answered; since the start, if it never has.
    pub(super) fn age(&self) -> Duration {
        let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(heard)
    }

    /// By name.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("membership_age_ms", self.age().as_millis() as u64),
            ("membership_entries", of(&self.listed)),
            ("membership_full_reads", of(&self.full_reads)),
            ("membership_entries_invalid", of(&self.invalid)),
            ("membership_workers_fenced", of(&self.fenced)),
        ]
    }
}
