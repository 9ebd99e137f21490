//! Fetching what comes next while a kernel computes.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::super::format::LINE;
use super::super::kernel::Ahead;

/// Lines that are still to be fetched, a few at each step.
pub(super) struct Fetch(Ahead);

impl Fetch {
    pub(super) fn new(ahead: Ahead) -> Self {
        Self(ahead)
    }

    /// Asks for the step's lines.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn step(&mut self) {
        for _ in 0..self.0.lines {
            _mm_prefetch::<_MM_HINT_T0>(self.0.next.cast());
            self.0.next = self.0.next.wrapping_add(LINE);
        }
    }
}
