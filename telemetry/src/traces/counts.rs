//! What has become of ended spans. It must not know who reads it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Spans by fate, since the start.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// A collector has taken them.
    pub(super) exported: AtomicU64,
    /// The queue was full, or the process had ended.
    pub(super) dropped: AtomicU64,
    /// A collector refused them, or could not be reached for too long.
    pub(super) failed: AtomicU64,
}

impl Counts {
    pub(super) fn snapshot(&self) -> [(&'static str, u64); 3] {
        [
            ("trace_spans_exported", &self.exported),
            ("trace_spans_dropped", &self.dropped),
            ("trace_spans_failed", &self.failed),
        ]
        .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

pub(super) fn add(counter: &AtomicU64, spans: usize) {
    counter.fetch_add(spans as u64, Ordering::Relaxed);
}
