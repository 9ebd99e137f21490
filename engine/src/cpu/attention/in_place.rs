//! bf16 tiles that are read where they lie, and the lines of the next one asked for meanwhile.
//!
//! It must not know what is computed from them.

use std::ops::Range;

use super::{
    Query, VECTORS,
    tile::{Tile, TileMemory, bf16_arithmetic, fetch_line},
};
use crate::cpu::{
    lanes::{LANES, Lanes},
    pages::Pages,
};

/// bf16 pages read as they are: 16 tokens of a page are one vector.
pub(super) struct InPlace {
    keys: [*const u16; VECTORS],
    key_stride: usize,
    values: [*const u16; VECTORS],
    value_stride: usize,
    /// Keys and values of the tile that comes next, if its lines should be asked for.
    next: Option<[[*const u16; VECTORS]; 2]>,
}

impl Tile for InPlace {
    const MANY_ROWS: bool = true;
    bf16_arithmetic!();
    #[inline(always)]
    unsafe fn open(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
        _: &mut TileMemory,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::locate(pages, query, start, count) }
    }
    #[inline(always)]
    unsafe fn look_ahead(&mut self, pages: &Pages, query: &Query<'_>, start: usize, count: usize) {
        // SAFETY: the caller's promise.
        let next = unsafe { Self::locate(pages, query, start, count) };
        let (mut keys, mut values) = (self.keys, self.values);
        // What the next tile lacks stays this one's, whose lines are near.
        let vectors = count.div_ceil(LANES);
        keys[..vectors].copy_from_slice(&next.keys[..vectors]);
        values[..vectors].copy_from_slice(&next.values[..vectors]);
        self.next = Some([keys, values]);
    }
    #[inline(always)]
    fn fetch_keys(&self, vectors: Range<usize>, pair: usize) {
        // A pair of dimensions of 16 keys is one line.
        if let Some([keys, _]) = &self.next {
            for vector in vectors {
                fetch_line(keys[vector].wrapping_add(pair * self.key_stride));
            }
        }
    }
    #[inline(always)]
    fn fetch_values(&self, (vector, pair): (usize, usize), columns: Range<usize>) {
        if let Some([_, values]) = &self.next {
            let row = values[vector].wrapping_add(pair * self.value_stride);
            for column in columns {
                fetch_line(row.wrapping_add(column * 2 * LANES));
            }
        }
    }
    #[inline(always)]
    unsafe fn keys<V: Lanes>(&self, vector: usize, pair: usize) -> V::Pairs {
        // SAFETY: the pair's row of 16 tokens is inside the head's K.
        unsafe { V::load_pairs(self.keys[vector].add(pair * self.key_stride)) }
    }
    #[inline(always)]
    unsafe fn values<V: Lanes>(&self, (vector, pair): (usize, usize), column: usize) -> V::Pairs {
        // SAFETY: the pair of tokens is inside the head's V.
        unsafe {
            let row = self.values[vector].add(pair * self.value_stride);
            V::load_pairs(row.add(column * 2 * LANES))
        }
    }
}

impl InPlace {
    /// Where the tile's keys and values are.
    ///
    /// # Safety
    /// The page table covers the tile.
    #[inline(always)]
    unsafe fn locate(pages: &Pages, query: &Query<'_>, start: usize, count: usize) -> Self {
        let (page_size, head_dim) = (
            pages.layout().page_size as usize,
            pages.layout().head_dim as usize,
        );
        let mut tile = Self {
            keys: [std::ptr::null(); VECTORS],
            key_stride: 2 * page_size,
            values: [std::ptr::null(); VECTORS],
            value_stride: 2 * head_dim,
            next: None,
        };
        for vector in 0..count.div_ceil(LANES) {
            let position = start + vector * LANES;
            let slot = position % page_size;
            let (keys, values) = pages.head(
                query.layer,
                query.pages[position / page_size],
                query.kv_head,
            );
            // SAFETY: 16 slots from `slot` on are inside the page, as both are multiples of 16.
            unsafe {
                tile.keys[vector] = keys.cast::<u16>().add(2 * slot);
                tile.values[vector] = values.cast::<u16>().add(slot * head_dim);
            }
        }
        tile
    }
}
