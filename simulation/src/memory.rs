//! The pages of a simulated worker: plain bytes that the engine reads and writes through atomics and the
//! transfer through the region's address. It must not know what is in them.
#![allow(unsafe_code)] // `KvMemory` is a promise about memory that only its implementor can make.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_kv_cache::{KvLayout, KvMemory};

/// Words by which the region may start behind the allocation, to be aligned.
const SLACK: usize = 8;

/// A region for a layout.
#[derive(Debug)]
pub struct Pages {
    layout: KvLayout,
    words: Box<[AtomicU64]>,
    /// First word of the region.
    first: usize,
}

impl Pages {
    /// Filled with what no sequence has written.
    pub fn new(layout: KvLayout) -> Arc<Self> {
        let count = layout.region_bytes().div_ceil(8) + SLACK;
        let words: Box<[AtomicU64]> = (0..count as u64).map(|at| AtomicU64::new(!at)).collect();
        let first = words.as_ptr().align_offset(64);
        assert!(first < SLACK, "64 bytes are 8 words");
        Arc::new(Self {
            layout,
            words,
            first,
        })
    }

    /// Shape of the pages.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Words of one (layer, page) piece.
    pub fn piece_words(&self) -> usize {
        self.layout.piece_bytes() / 8
    }

    /// Word `at` of a piece.
    pub fn read(&self, layer: u32, page: u32, at: usize) -> u64 {
        self.word(layer, page, at).load(Ordering::Relaxed)
    }

    /// Changes word `at` of a piece.
    pub fn write(&self, layer: u32, page: u32, at: usize, word: u64) {
        self.word(layer, page, at).store(word, Ordering::Relaxed);
    }

    fn word(&self, layer: u32, page: u32, at: usize) -> &AtomicU64 {
        assert!(at < self.piece_words() && page < self.layout.pages);
        &self.words[self.first + self.layout.piece_offset(layer, page) / 8 + at]
    }
}

// SAFETY: `words` never moves or shrinks while the value lives; `first` is the index of an address aligned
// to 64, and `SLACK` words more than the region were allocated behind the start. Atomics may be written
// through a shared reference.
unsafe impl KvMemory for Pages {
    fn base(&self) -> NonNull<u8> {
        NonNull::from(&self.words[self.first]).cast()
    }

    fn len(&self) -> usize {
        self.layout.region_bytes()
    }
}
