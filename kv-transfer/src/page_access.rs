//! The one place that turns pages of the local region into slices. It must not know protocols.
#![allow(unsafe_code)] // `KvMemory` hands out a raw region; slices of it are made here and only here.

use std::sync::Arc;

use baton_kv_cache::{KvLayout, KvMemory};

use crate::error::TransferError;
use crate::frame::MAX_PAYLOAD_BYTES;

/// Pages of the local region under a layout.
///
/// Why the slices are exclusive: a page's bytes are touched here only while the attempt that the page
/// belongs to is open, and its lock is held (the receiver's attempt state, the sender's gate). The
/// pool gives a page to one owner at a time: a granted page belongs to its attempt until that is
/// closed, and a page being sent is pinned, complete and no longer written until its attempt has ended.
#[derive(Debug, Clone)]
pub(crate) struct PageMemory {
    memory: Arc<dyn KvMemory>,
    layout: KvLayout,
}

/// Adjacent pieces of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceRun {
    pub(crate) layer: u32,
    pub(crate) page: u32,
    pub(crate) count: u32,
}

impl PageMemory {
    /// Checks that the region holds the layout and that a piece fits a frame.
    pub(crate) fn new(memory: Arc<dyn KvMemory>, layout: KvLayout) -> Result<Self, TransferError> {
        let bytes = layout.piece_bytes();
        if bytes == 0 || layout.layers == 0 {
            return Err(TransferError::Memory {
                detail: "the layout has empty pages".to_owned(),
            });
        }
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(TransferError::PieceTooLarge {
                bytes,
                limit: MAX_PAYLOAD_BYTES,
            });
        }
        if memory.len() < layout.region_bytes() {
            let (have, need) = (memory.len(), layout.region_bytes());
            return Err(TransferError::Memory {
                detail: format!("region of {have} bytes, the layout needs {need}"),
            });
        }
        Ok(Self { memory, layout })
    }

    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Bytes of a run of pieces that this side owns or has pinned.
    pub(crate) fn bytes(&self, run: PieceRun) -> &[u8] {
        let (offset, length) = self.place(run);
        // SAFETY: `place` keeps the range inside the layout, `new` the layout inside the region, which
        // lives as long as `self.memory`. Nobody writes these pages meanwhile: see the type.
        unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr().add(offset), length) }
    }

    /// Runs `fill` over part of a run of pieces granted to an open attempt: `skip` bytes in, at most
    /// `limit` long.
    pub(crate) fn fill<R>(
        &self,
        run: PieceRun,
        skip: usize,
        limit: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let (offset, length) = self.place(run);
        let skip = skip.min(length);
        let length = (length - skip).min(limit);
        // SAFETY: in bounds as above. Exclusive: the caller holds the lock of the open attempt that
        // owns these pages, and the slice ends with this call.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.memory.base().as_ptr().add(offset + skip), length)
        };
        fill(bytes)
    }

    /// Offset and length of a run.
    ///
    /// Panics if it lies outside the pool: callers have compared pages with a grant or page table.
    fn place(&self, run: PieceRun) -> (usize, usize) {
        let end = run.page.checked_add(run.count);
        assert!(
            run.layer < self.layout.layers && end.is_some_and(|end| end <= self.layout.pages),
            "{run:?} lies outside {:?}",
            self.layout
        );
        let offset = self.layout.piece_offset(run.layer, run.page);
        (offset, run.count as usize * self.layout.piece_bytes())
    }
}
