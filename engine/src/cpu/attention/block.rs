//! One tile and as many rows as fit into registers.
//!
//! How many rows go together never shows in a row's result; which rows and tiles meet is not decided
//! here.

use std::ops::Range;

use super::{
    BLOCK, Query, Scratch, TILE,
    rows::{gather_values, score, weigh},
    span::{part_values, state},
    tile::{Tile, TileMemory},
};
use crate::cpu::{
    lanes::{BF16_FLOOR, LANES, Lanes},
    pages::Pages,
};

/// One tile with the arithmetic of its type.
pub(super) trait Kernel {
    /// Whether blocks of several rows are worth compiling.
    const MANY_ROWS: bool;
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
    unsafe fn look_ahead(&mut self, pages: &Pages, query: &Query<'_>, start: usize, count: usize);
    /// Queries times log2(e), so that weights are powers of two, as operands of the scores.
    ///
    /// # Safety
    /// The query's pointers are good, and scratch has room for its rows.
    unsafe fn round_queries<V: Lanes>(query: &Query<'_>, head_dim: usize, scratch: &mut Scratch);
    /// Takes the tile, whose first key is at `start`, into `R` rows from `row` on.
    ///
    /// # Safety
    /// The rows exist and their queries were rounded, and each sees at least the tile's first key.
    unsafe fn block<V: Lanes, const R: usize>(
        &self,
        query: &Query<'_>,
        head_dim: usize,
        start: usize,
        row: usize,
        scratch: &mut Scratch,
    );
}

impl<T: Tile> Kernel for T {
    const MANY_ROWS: bool = T::MANY_ROWS;
    #[inline(always)]
    unsafe fn open(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
        memory: &mut TileMemory,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe { T::open(pages, query, start, count, memory) }
    }
    #[inline(always)]
    unsafe fn look_ahead(&mut self, pages: &Pages, query: &Query<'_>, start: usize, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { T::look_ahead(self, pages, query, start, count) }
    }
    #[inline(always)]
    unsafe fn round_queries<V: Lanes>(query: &Query<'_>, head_dim: usize, scratch: &mut Scratch) {
        // SAFETY: the caller's promise.
        unsafe { round_queries::<V, T>(query, head_dim, &mut scratch.queries) }
    }
    #[inline(always)]
    unsafe fn block<V: Lanes, const R: usize>(
        &self,
        query: &Query<'_>,
        head_dim: usize,
        start: usize,
        row: usize,
        scratch: &mut Scratch,
    ) {
        // SAFETY: the caller's promise.
        unsafe { block::<V, T, R>(self, query, head_dim, start, row, scratch) }
    }
}

/// Takes one tile into as many of `rows`, from the first on, as fit into registers; returns their number.
///
/// # Safety
/// There is a row, and the first sees at least the tile's first key.
#[inline(always)]
pub(super) unsafe fn widest_block<V: Lanes, K: Kernel>(
    kernel: &K,
    query: &Query<'_>,
    head_dim: usize,
    start: usize,
    rows: Range<usize>,
    scratch: &mut Scratch,
) -> usize {
    let (row, rows) = (rows.start, rows.len());
    // SAFETY: later rows see no fewer keys.
    unsafe {
        if V::WIDE && K::MANY_ROWS {
            if rows >= BLOCK {
                kernel.block::<V, BLOCK>(query, head_dim, start, row, scratch);
                return BLOCK;
            }
            if rows >= 4 {
                kernel.block::<V, 4>(query, head_dim, start, row, scratch);
                return 4;
            }
            if rows == 3 {
                kernel.block::<V, 3>(query, head_dim, start, row, scratch);
                return 3;
            }
        }
        if K::MANY_ROWS && rows >= 2 {
            kernel.block::<V, 2>(query, head_dim, start, row, scratch);
            return 2;
        }
        kernel.block::<V, 1>(query, head_dim, start, row, scratch);
        1
    }
}

/// Takes one tile into `R` rows from `row` on.
///
/// # Safety
/// The rows exist, and each sees at least the tile's first key.
#[inline(always)]
unsafe fn block<V: Lanes, T: Tile, const R: usize>(
    tile: &T,
    query: &Query<'_>,
    head_dim: usize,
    start: usize,
    row: usize,
    scratch: &mut Scratch,
) {
    let mut seen = [0; R];
    for (r, seen) in seen.iter_mut().enumerate() {
        *seen = TILE.min(query.position + query.token(row + r) + 1 - start);
    }
    let scores = scratch.scores.as_mut_ptr();
    let weights = scratch.weights.as_mut_ptr().cast::<T::Operand>();
    let queries = scratch.queries.as_ptr().cast::<T::Operand>();
    // SAFETY: the last row sees the most keys; the tile was opened for at least as many; scratch
    // has `R` rows of everything.
    unsafe {
        let vectors = seen[R - 1].div_ceil(LANES);
        let queries = queries.add(row * head_dim);
        score::<V, T, R>(tile, queries, head_dim / 2, vectors, scores);
        let (sums, stride) = (scratch.parts.row(row), part_values(head_dim));
        for r in 0..R {
            let mut state = state(sums.add(r * stride), head_dim);
            let (scores, weights) = (scores.add(r * TILE), weights.add(r * TILE));
            weigh::<V, T>(scores, seen[r], weights, &mut state);
        }
        let columns = head_dim.div_ceil(LANES);
        let mut column = 0;
        while column < columns {
            let sums = sums.add(column * LANES);
            if V::WIDE && column + 4 <= columns {
                gather_values::<V, T, R, 4>(tile, weights, seen, sums, stride, column);
                column += 4;
            } else if column + 2 <= columns {
                gather_values::<V, T, R, 2>(tile, weights, seen, sums, stride, column);
                column += 2;
            } else {
                gather_values::<V, T, R, 1>(tile, weights, seen, sums, stride, column);
                column += 1;
            }
        }
    }
}

/// Queries times log2(e), so that weights are powers of two, in the operands' type.
#[inline(always)]
unsafe fn round_queries<V: Lanes, T: Tile>(
    query: &Query<'_>,
    head_dim: usize,
    rounded: &mut [f32],
) {
    let rounded = rounded.as_mut_ptr().cast::<T::Operand>();
    let factor = V::splat(std::f32::consts::LOG2_E);
    for row in 0..query.rows() {
        // SAFETY: the caller's promise; what is read and written beyond a row is written again with
        // the next, or spare.
        unsafe {
            let from = query.place(row, head_dim, query.stride);
            let from = query.queries.add(from);
            for column in (0..head_dim).step_by(2 * LANES) {
                let low = V::load(from.add(column));
                let high = if column + LANES < head_dim {
                    V::load(from.add(column + LANES))
                } else {
                    V::splat(0.0)
                };
                let low = low.mul(factor).without_below(BF16_FLOOR);
                let high = high.mul(factor).without_below(BF16_FLOOR);
                T::store(low, high, rounded.add(row * head_dim + column));
            }
        }
    }
}
