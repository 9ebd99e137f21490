//! Keys and values of one tile, wherever and in whichever type the pages hold them.
//!
//! It must not know what is computed from them.

use baton_kv_cache::KvDtype;

use super::{Query, Scratch, TILE, VECTORS};
use crate::cpu::{
    lanes::{LANES, Lanes},
    pages::{Bf16, Element, Pages, paired},
};

/// Keys and values of one tile.
pub(super) trait Tile {
    /// Finds `count` keys from position `start` on.
    ///
    /// # Safety
    /// The page table covers them, and they stay unwritten while the tile is used.
    unsafe fn open(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
        scratch: &mut Scratch,
    ) -> Self;
    /// Dimensions `2 * pair` and `2 * pair + 1` of 16 keys.
    ///
    /// # Safety
    /// `vector` is below `count / 16` rounded up, `pair` below `head_dim / 2`.
    unsafe fn keys<V: Lanes>(&self, vector: usize, pair: usize) -> (V, V);
    /// 16 dimensions from `16 * column` on of keys `2 * pair` and `2 * pair + 1`.
    ///
    /// # Safety
    /// `pair` is below `count / 2` rounded up; what belongs to keys from `count` on is unspecified.
    unsafe fn values<V: Lanes>(&self, pair: usize, column: usize) -> (V, V);
}

/// bf16 pages read as they are: 16 tokens of a page are one vector.
pub(super) struct InPlace {
    keys: [*const u16; VECTORS],
    key_stride: usize,
    values: [*const u16; VECTORS],
    value_stride: usize,
}

impl Tile for InPlace {
    #[inline(always)]
    unsafe fn open(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
        _: &mut Scratch,
    ) -> Self {
        let (page_size, head_dim) = (
            pages.layout().page_size as usize,
            pages.layout().head_dim as usize,
        );
        let mut tile = Self {
            keys: [std::ptr::null(); VECTORS],
            key_stride: 2 * page_size,
            values: [std::ptr::null(); VECTORS],
            value_stride: 2 * head_dim,
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
    #[inline(always)]
    unsafe fn keys<V: Lanes>(&self, vector: usize, pair: usize) -> (V, V) {
        // SAFETY: the pair's row of 16 tokens is inside the head's K.
        unsafe { V::load_bf16_pairs(self.keys[vector].add(pair * self.key_stride)) }
    }
    #[inline(always)]
    unsafe fn values<V: Lanes>(&self, pair: usize, column: usize) -> (V, V) {
        const PAIRS: usize = LANES / 2;
        // SAFETY: the pair of tokens is inside the head's V.
        unsafe {
            let row = self.values[pair / PAIRS].add(pair % PAIRS * self.value_stride);
            V::load_bf16_pairs(row.add(column * 2 * LANES))
        }
    }
}

/// Any page size and type, widened into working memory first.
pub(super) struct Gathered {
    keys: *const f32,
    values: *const f32,
    width: usize,
}

impl Tile for Gathered {
    #[inline(always)]
    unsafe fn open(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
        scratch: &mut Scratch,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            match pages.layout().dtype {
                KvDtype::Bf16 => gather::<Bf16>(pages, query, start, count, scratch),
                KvDtype::F16 => gather::<half::f16>(pages, query, start, count, scratch),
                KvDtype::F32 => gather::<f32>(pages, query, start, count, scratch),
            }
        }
        Self {
            keys: scratch.keys.as_ptr(),
            values: scratch.values.as_ptr(),
            width: scratch.width,
        }
    }
    #[inline(always)]
    unsafe fn keys<V: Lanes>(&self, vector: usize, pair: usize) -> (V, V) {
        // SAFETY: rows `2 * pair` and the next of the scratch.
        unsafe {
            let row = self.keys.add(2 * pair * TILE + vector * LANES);
            (V::load(row), V::load(row.add(TILE)))
        }
    }
    #[inline(always)]
    unsafe fn values<V: Lanes>(&self, pair: usize, column: usize) -> (V, V) {
        // SAFETY: rows `2 * pair` and the next of the scratch.
        unsafe {
            let row = self.values.add(2 * pair * self.width + column * LANES);
            (V::load(row), V::load(row.add(self.width)))
        }
    }
}

/// Widens `count` keys and values from `start` on into the scratch.
///
/// # Safety
/// As [`Tile::open`]; `E` is the pages' element type.
unsafe fn gather<E: Element>(
    pages: &Pages,
    query: &Query<'_>,
    start: usize,
    count: usize,
    scratch: &mut Scratch,
) {
    let (page_size, head_dim) = (
        pages.layout().page_size as usize,
        pages.layout().head_dim as usize,
    );
    for key in 0..count {
        let (page, slot) = ((start + key) / page_size, (start + key) % page_size);
        let (keys, values) = pages.head(query.layer, query.pages[page], query.kv_head);
        let (keys, values) = (keys.cast::<E>(), values.cast::<E>());
        for dimension in 0..head_dim {
            // SAFETY: `paired` stays inside the head's matrices.
            unsafe {
                let value = values
                    .add(paired(slot, dimension, page_size, head_dim))
                    .read();
                scratch.values[key * scratch.width + dimension] = value.widen();
                let value = keys
                    .add(paired(dimension, slot, head_dim, page_size))
                    .read();
                scratch.keys[dimension * TILE + key] = value.widen();
            }
        }
    }
}
