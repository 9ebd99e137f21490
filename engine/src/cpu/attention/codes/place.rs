//! Where a tile's codes and scales are: in its pages, or put in order beside them.
//!
//! It must not know what is computed with them.

use super::QUAD;
use crate::cpu::{
    attention::{BLOCK, Query, TILE, VECTORS},
    lanes::LANES,
    pages::{Element, KeyCode, Pages, ValueCode},
};

/// Working memory for tiles of codes.
pub(in crate::cpu::attention) struct CodeMemory {
    /// Where keys are put that cannot be read in place: quads of dimensions by [`TILE`].
    pub(super) keys: Vec<u8>,
    /// The same of values: quads of keys by `width` dimensions.
    pub(super) values: Vec<u8>,
    /// Scales of the keys, then of the values. Like the codes, on their own: [`Codes`] points to them
    /// while the rest of this memory is written.
    pub(super) scales: [Vec<f32>; 2],
    /// Digits of the weights of a kernel's rows: high, then low.
    pub(super) weights: [[[i8; TILE]; 2]; BLOCK],
    /// Value of 1 of each row's weights.
    pub(super) steps: [f32; LANES],
    /// `head_dim` in whole vectors.
    pub(super) width: usize,
}

impl CodeMemory {
    pub(in crate::cpu::attention) fn new(head_dim: usize) -> Self {
        let width = head_dim.next_multiple_of(LANES);
        Self {
            keys: vec![0; width * TILE],
            values: vec![0; width * TILE],
            scales: [vec![0.0; TILE], vec![0.0; TILE]],
            weights: [[[0; TILE]; 2]; BLOCK],
            steps: [0.0; LANES],
            width,
        }
    }
}

/// Codes of one tile and where its scales are.
pub(in crate::cpu::attention) struct Codes {
    /// First quad of dimensions of each 16 keys, and bytes from one quad to the next.
    pub(super) keys: [*const u8; VECTORS],
    pub(super) key_stride: usize,
    /// First quad of each 16 keys, and bytes from one quad of keys to the next.
    pub(super) values: [*const u8; VECTORS],
    pub(super) value_stride: usize,
    /// Of the keys, [`TILE`] values, and of the values.
    pub(super) scales: [*const f32; 2],
}

impl Codes {
    /// Where the tile's codes and, 16 by 16, its scales are, if they can be read in place.
    ///
    /// # Safety
    /// The page table covers the tile.
    #[inline(always)]
    pub(super) unsafe fn locate(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
    ) -> (Self, [[*const f32; 2]; VECTORS]) {
        let (page_size, head_dim) = (
            pages.layout().page_size as usize,
            pages.layout().head_dim as usize,
        );
        let mut tile = Self {
            keys: [std::ptr::null(); VECTORS],
            key_stride: QUAD * page_size,
            values: [std::ptr::null(); VECTORS],
            value_stride: QUAD * head_dim,
            scales: [std::ptr::null(); 2],
        };
        let mut scales = [[std::ptr::null(); 2]; VECTORS];
        for vector in 0..count.div_ceil(LANES) {
            let position = start + vector * LANES;
            let slot = position % page_size;
            let page = query.pages[position / page_size];
            let (keys, values) = pages.head(query.layer, page, query.kv_head);
            // SAFETY: 16 slots from `slot` on are inside the page, as both are multiples of 16.
            unsafe {
                tile.keys[vector] = keys.add(QUAD * slot);
                tile.values[vector] = values.add(slot * head_dim);
                for (scales, head) in scales[vector].iter_mut().zip([keys, values]) {
                    *scales = head.add(page_size * head_dim).cast::<f32>().add(slot);
                }
            }
        }
        (tile, scales)
    }

    /// The tile that [`gather`] put there.
    #[inline(always)]
    pub(super) fn gathered(memory: &CodeMemory) -> Self {
        let mut tile = Self {
            keys: [std::ptr::null(); VECTORS],
            key_stride: QUAD * TILE,
            values: [std::ptr::null(); VECTORS],
            value_stride: QUAD * memory.width,
            scales: [memory.scales[0].as_ptr(), memory.scales[1].as_ptr()],
        };
        for vector in 0..VECTORS {
            tile.keys[vector] = memory.keys[vector * QUAD * LANES..].as_ptr();
            tile.values[vector] = memory.values[vector * LANES * memory.width..].as_ptr();
        }
        tile
    }
}

/// Whether every 16 keys and 16 dimensions are whole lines of a page.
#[inline(always)]
pub(super) fn reads_in_place(pages: &Pages) -> bool {
    let layout = pages.layout();
    layout.head_dim.is_multiple_of(LANES as u32) && layout.page_size.is_multiple_of(LANES as u32)
}

/// Puts `count` keys and values from `start` on, and their scales, in order.
///
/// # Safety
/// As [`Kernel::open`].
pub(super) unsafe fn gather(
    pages: &Pages,
    query: &Query<'_>,
    start: usize,
    count: usize,
    memory: &mut CodeMemory,
) {
    let (page_size, head_dim) = (
        pages.layout().page_size as usize,
        pages.layout().head_dim as usize,
    );
    let quads = head_dim.next_multiple_of(QUAD);
    for key in 0..count {
        let (page, slot) = ((start + key) / page_size, (start + key) % page_size);
        let (keys, values) = pages.head(query.layer, query.pages[page], query.kv_head);
        // SAFETY: `place` stays inside the head's matrices; the scales follow them.
        unsafe {
            for dimension in 0..head_dim {
                let from = KeyCode::place(dimension, slot, head_dim, page_size);
                memory.keys[KeyCode::place(dimension, key, quads, TILE)] = keys.add(from).read();
                let from = ValueCode::place(slot, dimension, page_size, head_dim);
                let to = ValueCode::place(key, dimension, TILE, memory.width);
                memory.values[to] = values.add(from).read();
            }
            for (scales, head) in memory.scales.iter_mut().zip([keys, values]) {
                let from = head.add(page_size * head_dim).cast::<f32>();
                scales[key] = from.add(slot).read_unaligned();
            }
        }
    }
}
