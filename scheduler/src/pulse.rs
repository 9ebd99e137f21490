//! The step thread's sign of life: it moves before every step and with every layer of one, and a thread
//! that waits for work counts as moving. Only one that is stuck stands still.
//!
//! It must not know who looks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shared by the step thread and those who look after it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    beats: AtomicU64,
    waits: AtomicBool,
}

impl Pulse {
    /// The step thread has moved.
    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// The step thread waits, with nothing to compute, as long as it keeps what it is given.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.waits.store(true, Ordering::Relaxed);
        Waiting(self)
    }

    /// Whether it waits, or has moved since `seen` was last brought up to date here.
    pub(crate) fn has_moved(&self, seen: &mut u64) -> bool {
        let beats = self.beats.load(Ordering::Relaxed);
        let before = std::mem::replace(seen, beats);
        before != beats || self.waits.load(Ordering::Relaxed)
    }
}

/// A wait for work.
#[must_use]
pub(crate) struct Waiting<'a>(&'a Pulse);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waits.store(false, Ordering::Relaxed);
        self.0.beat();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_neither_moves_nor_waits_stands_still() {
        let pulse = Pulse::default();
        let mut seen = 0;
        assert!(!pulse.has_moved(&mut seen));
        pulse.beat();
        assert!(pulse.has_moved(&mut seen) && !pulse.has_moved(&mut seen));
        let waiting = pulse.waiting();
        assert!(pulse.has_moved(&mut seen) && pulse.has_moved(&mut seen));
        drop(waiting);
        assert!(pulse.has_moved(&mut seen) && !pulse.has_moved(&mut seen));
    }
}
