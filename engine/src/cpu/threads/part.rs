//! A thread's part of a run's items, from which its owner and others take bites.

use std::{
    ops::Range,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Release},
    },
};

/// Items that nobody has taken yet: first in the high half, end in the low half. On lines of its own
/// (prefetchers fetch pairs), as its owner takes from it all the time.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Part(AtomicU64);

impl Part {
    /// Makes `items` the untaken ones, and what was written before visible to whoever takes them.
    pub(super) fn fill(&self, items: Range<usize>) {
        let packed = (items.start as u64) << 32 | items.end as u64;
        self.0.store(packed, Release);
    }

    /// Takes three quarters of what is left, at most `most` items, from the front or from the end; `None` if
    /// nothing is left.
    pub(super) fn take(&self, most: usize, from_front: bool) -> Option<Range<usize>> {
        let mut packed = self.0.load(Acquire);
        loop {
            let (start, end) = ((packed >> 32) as usize, packed as u32 as usize);
            if start >= end {
                return None;
            }
            let bite = ((end - start) * 3).div_ceil(4).min(most.max(1));
            let (taken, rest) = if from_front {
                (start..start + bite, start + bite..end)
            } else {
                (end - bite..end, start..end - bite)
            };
            let rest = (rest.start as u64) << 32 | rest.end as u64;
            match self.0.compare_exchange_weak(packed, rest, AcqRel, Acquire) {
                Ok(_) => return Some(taken),
                Err(now) => packed = now,
            }
        }
    }
}
