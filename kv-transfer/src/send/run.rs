//! Runs of pieces that leave together. It must not know transports.

use baton_kv_cache::PageIndex;
use baton_proto::domain::PageSlot;

use crate::page_access::PieceRun;

/// Pages adjacent in the prompt, in the local pool and in the receiver's pool, in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) layer: u32,
    /// Index of the first page among the granted slots.
    pub(crate) index: u32,
    pub(crate) count: u32,
    /// First local page.
    pub(crate) local_page: u32,
    /// First page at the receiver.
    pub(crate) slot_page: u32,
}

impl Run {
    /// The longest run of `layer` that starts at slot `index`, ends before `ready` and has at most
    /// `limit` pages. `local` are the pages behind the reused prefix. `None` when there is none.
    pub(crate) fn longest(
        layer: u32,
        index: u32,
        ready: u32,
        limit: u32,
        local: &[PageIndex],
        slots: &[PageSlot],
    ) -> Option<Self> {
        let end = ready
            .min(slots.len() as u32)
            .min(local.len() as u32)
            .min(index.saturating_add(limit));
        if index >= end {
            return None;
        }
        let (first, from) = (index as usize, index as usize + 1);
        let (local_page, slot_page) = (local[first].0, slots[first].page);
        let adjacent = (from..end as usize)
            .zip(1u32..)
            .take_while(|(at, step)| {
                local_page.checked_add(*step) == Some(local[*at].0)
                    && slot_page.checked_add(*step) == Some(slots[*at].page)
            })
            .count();
        Some(Self {
            layer,
            index,
            count: adjacent as u32 + 1,
            local_page,
            slot_page,
        })
    }

    pub(crate) fn local(&self) -> PieceRun {
        PieceRun {
            layer: self.layer,
            page: self.local_page,
            count: self.count,
        }
    }
}
