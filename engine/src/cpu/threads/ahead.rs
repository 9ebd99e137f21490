//! Memory that is read soon, fetched into the cache by threads that have nothing else to do.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Most bytes that a thread fetches: what a short wait suffices for.
const MOST_BYTES: usize = 32 << 10;
/// Lines fetched between two looks at whether the wait is over.
const LINES_AT_ONCE: usize = 4;

/// What the next run reads. Only hints: a thread that sees half of a change fetches what nobody needs.
#[derive(Default)]
pub(super) struct Ahead {
    start: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

/// Lines that one thread has still to fetch.
pub(super) struct Lines {
    next: *const u8,
    left: usize,
}

impl Ahead {
    pub(super) fn set(&self, memory: &[u8]) {
        self.start.store(memory.as_ptr().cast_mut(), Relaxed);
        self.bytes.store(memory.len(), Relaxed);
    }

    /// The first lines of a thread's part.
    pub(super) fn lines(&self, thread: usize, threads: usize) -> Lines {
        let part = self.bytes.load(Relaxed) / threads;
        Lines {
            next: self.start.load(Relaxed).wrapping_add(part * thread),
            left: part.min(MOST_BYTES) / LINE,
        }
    }
}

impl Lines {
    /// Asks for a few lines; `false` if none is left.
    pub(super) fn fetch_some(&mut self) -> bool {
        let lines = self.left.min(LINES_AT_ONCE);
        for _ in 0..lines {
            fetch(self.next);
            self.next = self.next.wrapping_add(LINE);
        }
        self.left -= lines;
        lines > 0
    }
}

#[cfg(target_arch = "x86_64")]
fn fetch(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
fn fetch(_: *const u8) {}
