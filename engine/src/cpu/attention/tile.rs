//! Keys and values of one tile, wherever and in whichever type the pages hold them, and the
//! arithmetic that goes with the type.
//!
//! It must not know what is computed from them.

use std::ops::Range;

use baton_kv_cache::KvDtype;

use super::{PAIRS, Query, TILE, codes::CodeMemory};
use crate::cpu::{
    lanes::{LANES, Lanes},
    pages::{Bf16, Element, Pages, Plain},
};

/// Keys and values of one tile, which are taken two rows at a time.
pub(super) trait Tile {
    /// Whether kernels for several rows at once are worth compiling.
    const MANY_ROWS: bool;
    /// What queries and weights are rounded to.
    type Operand: Copy;
    /// Two rows of a matrix over 16 columns.
    type Pair<V: Lanes>: Copy;
    /// Finds `count` keys from position `start` on.
    ///
    /// # Safety
    /// The page table covers them, and they stay unwritten while the tile is used.
    unsafe fn open(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
        memory: &mut TileMemory,
    ) -> Self;
    /// Says which tile comes next, so that its lines may be asked for while this one is taken.
    ///
    /// # Safety
    /// The page table covers the next tile.
    unsafe fn look_ahead(&mut self, _: &Pages, _: &Query<'_>, _: usize, _: usize) {}
    /// Asks for what [`Self::keys`] gives for these vectors of the next tile.
    #[inline(always)]
    fn fetch_keys(&self, _: Range<usize>, _: usize) {}
    /// Asks for what [`Self::values`] gives for these columns of the next tile.
    #[inline(always)]
    fn fetch_values(&self, _: (usize, usize), _: Range<usize>) {}
    /// Dimensions `2 * pair` and `2 * pair + 1` of 16 keys.
    ///
    /// # Safety
    /// `vector` is below `count / 16` rounded up, `pair` below `head_dim / 2`.
    unsafe fn keys<V: Lanes>(&self, vector: usize, pair: usize) -> Self::Pair<V>;
    /// 16 dimensions from `16 * column` on of a pair of keys: which 16 keys, and which pair of these.
    ///
    /// # Safety
    /// The first is below `count / 16` rounded up, the second below [`PAIRS`]; what belongs to keys
    /// from `count` on is unspecified.
    unsafe fn values<V: Lanes>(&self, pair: (usize, usize), column: usize) -> Self::Pair<V>;
    /// Stores 32 queries or weights and returns them; none is a tiny number other than zero.
    ///
    /// # Safety
    /// 32 writable values.
    unsafe fn store<V: Lanes>(low: V, high: V, target: *mut Self::Operand) -> Self::Pair<V>;
    /// `sum`, plus the product of the second row, then of the first, with the two values at `x`.
    ///
    /// # Safety
    /// Two readable values.
    unsafe fn dot<V: Lanes>(sum: V, rows: Self::Pair<V>, x: *const Self::Operand) -> V;
    /// `sum` plus all 32 of what [`Self::store`] returned.
    fn add_all<V: Lanes>(sum: V, values: Self::Pair<V>) -> V;
    /// `rows` without the second row.
    fn first_only<V: Lanes>(rows: Self::Pair<V>) -> Self::Pair<V>;
}

/// Where a tile is put that cannot be read in place.
pub(super) struct TileMemory {
    /// Keys, `head_dim` rows of [`TILE`], then values, [`TILE`] rows of `width`.
    floats: Vec<f32>,
    /// The same as bf16, rows in pairs.
    halves: Vec<u16>,
    /// Codes.
    pub(super) codes: CodeMemory,
    /// `head_dim` in whole vectors.
    width: usize,
}

impl TileMemory {
    pub(super) fn new(head_dim: usize) -> Self {
        let width = head_dim.next_multiple_of(LANES);
        let values = (head_dim + width) * TILE;
        Self {
            floats: vec![0.0; values],
            halves: vec![0; values],
            codes: CodeMemory::new(head_dim),
            width,
        }
    }
}

/// A pair of bf16 rows and its arithmetic.
macro_rules! bf16_arithmetic {
    () => {
        type Operand = u16;
        type Pair<V: Lanes> = V::Pairs;
        #[inline(always)]
        unsafe fn store<V: Lanes>(low: V, high: V, target: *mut u16) -> V::Pairs {
            let pairs = V::round_to_pairs(low, high);
            // SAFETY: the caller's promise.
            unsafe { V::store_pairs(pairs, target) };
            pairs
        }
        #[inline(always)]
        unsafe fn dot<V: Lanes>(sum: V, rows: V::Pairs, x: *const u16) -> V {
            // SAFETY: the caller's promise.
            sum.dot_pairs(rows, unsafe { V::splat_pair(x) })
        }
        #[inline(always)]
        fn add_all<V: Lanes>(sum: V, values: V::Pairs) -> V {
            const ONES: [u16; 2] = [0x3f80; 2];
            // SAFETY: two values.
            sum.dot_pairs(values, unsafe { V::splat_pair(ONES.as_ptr()) })
        }
        #[inline(always)]
        fn first_only<V: Lanes>(rows: V::Pairs) -> V::Pairs {
            V::without_seconds(rows)
        }
    };
}
pub(super) use bf16_arithmetic;

/// Asks for the line at `at`.
#[inline(always)]
pub(super) fn fetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, whatever the address; SSE is part of the architecture.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// bf16 pages of any size and head width, their pairs put in order first.
pub(super) struct Halves {
    keys: *const u16,
    values: *const u16,
    width: usize,
}

impl Tile for Halves {
    const MANY_ROWS: bool = false;
    bf16_arithmetic!();
    #[inline(always)]
    unsafe fn open(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
        memory: &mut TileMemory,
    ) -> Self {
        let (head_dim, width) = (pages.layout().head_dim as usize, memory.width);
        let (keys, values) = memory.halves.split_at_mut(head_dim * TILE);
        // SAFETY: the caller's promise.
        unsafe {
            each::<Bf16>(pages, query, start, count, |key, dimension, k, v| {
                keys[Bf16::place(dimension, key, head_dim, TILE)] = k.bits();
                values[Bf16::place(key, dimension, TILE, width)] = v.bits();
            });
        }
        Self {
            keys: keys.as_ptr(),
            values: values.as_ptr(),
            width,
        }
    }
    #[inline(always)]
    unsafe fn keys<V: Lanes>(&self, vector: usize, pair: usize) -> V::Pairs {
        // SAFETY: the pair's row of `TILE` pairs is in memory.
        unsafe { V::load_pairs(self.keys.add(2 * (pair * TILE + vector * LANES))) }
    }
    #[inline(always)]
    unsafe fn values<V: Lanes>(&self, (vector, pair): (usize, usize), column: usize) -> V::Pairs {
        let pair = vector * PAIRS + pair;
        // SAFETY: the pair's row of `width` pairs is in memory.
        unsafe { V::load_pairs(self.values.add(2 * (pair * self.width + column * LANES))) }
    }
}

/// Any other type, widened into memory first; queries and weights stay f32.
pub(super) struct Floats {
    keys: *const f32,
    values: *const f32,
    width: usize,
}

impl Tile for Floats {
    const MANY_ROWS: bool = false;
    type Operand = f32;
    type Pair<V: Lanes> = (V, V);
    #[inline(always)]
    unsafe fn open(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
        memory: &mut TileMemory,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            match pages.layout().dtype {
                KvDtype::F16 => widen::<half::f16>(pages, query, start, count, memory),
                _ => widen::<f32>(pages, query, start, count, memory),
            }
        }
        let (keys, values) = memory
            .floats
            .split_at(pages.layout().head_dim as usize * TILE);
        Self {
            keys: keys.as_ptr(),
            values: values.as_ptr(),
            width: memory.width,
        }
    }
    #[inline(always)]
    unsafe fn keys<V: Lanes>(&self, vector: usize, pair: usize) -> (V, V) {
        // SAFETY: rows `2 * pair` and the next are in memory.
        unsafe {
            let row = self.keys.add(2 * pair * TILE + vector * LANES);
            (V::load(row), V::load(row.add(TILE)))
        }
    }
    #[inline(always)]
    unsafe fn values<V: Lanes>(&self, (vector, pair): (usize, usize), column: usize) -> (V, V) {
        let pair = vector * PAIRS + pair;
        // SAFETY: rows `2 * pair` and the next are in memory.
        unsafe {
            let row = self.values.add(2 * pair * self.width + column * LANES);
            (V::load(row), V::load(row.add(self.width)))
        }
    }
    #[inline(always)]
    unsafe fn store<V: Lanes>(low: V, high: V, target: *mut f32) -> (V, V) {
        // SAFETY: the caller's promise.
        unsafe {
            low.store(target);
            high.store(target.add(LANES));
        }
        (low, high)
    }
    #[inline(always)]
    unsafe fn dot<V: Lanes>(sum: V, rows: (V, V), x: *const f32) -> V {
        // SAFETY: the caller's promise.
        let (first, second) = unsafe { (V::splat(*x), V::splat(*x.add(1))) };
        rows.0.fma(first, rows.1.fma(second, sum))
    }
    #[inline(always)]
    fn add_all<V: Lanes>(sum: V, values: (V, V)) -> V {
        sum.add(values.1).add(values.0)
    }
    #[inline(always)]
    fn first_only<V: Lanes>(rows: (V, V)) -> (V, V) {
        (rows.0, V::splat(0.0))
    }
}

/// Widens `count` keys and values from `start` on.
///
/// # Safety
/// As [`Tile::open`]; `E` is the pages' element type.
unsafe fn widen<E: Plain>(
    pages: &Pages,
    query: &Query<'_>,
    start: usize,
    count: usize,
    memory: &mut TileMemory,
) {
    let width = memory.width;
    let (keys, values) = memory
        .floats
        .split_at_mut(pages.layout().head_dim as usize * TILE);
    // SAFETY: the caller's promise.
    unsafe {
        each::<E>(pages, query, start, count, |key, dimension, k, v| {
            keys[dimension * TILE + key] = k.widen();
            values[key * width + dimension] = v.widen();
        });
    }
}

/// Hands over every element of `count` keys and values: key, dimension, K, V.
///
/// # Safety
/// As [`Tile::open`]; `E` is the pages' element type.
unsafe fn each<E: Element>(
    pages: &Pages,
    query: &Query<'_>,
    start: usize,
    count: usize,
    mut take: impl FnMut(usize, usize, E, E),
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
            // SAFETY: `place` stays inside the head's matrices.
            let (k, v) = unsafe {
                (
                    keys.add(E::place(dimension, slot, head_dim, page_size))
                        .read(),
                    values
                        .add(E::place(slot, dimension, page_size, head_dim))
                        .read(),
                )
            };
            take(key, dimension, k, v);
        }
    }
}
