//! One tile and as many rows as fit into registers.
//!
//! How many rows go together never shows in a row's result; which rows and tiles meet is not decided
//! here.

use super::{
    BLOCK, Query, Scratch, TILE,
    rows::{gather_values, score, weigh},
    span::{part_values, state},
    tile::Tile,
};
use crate::cpu::lanes::{LANES, Lanes};

/// Takes one tile into as many rows from `row` on as fit into registers; returns their number.
///
/// # Safety
/// The row exists and sees at least the tile's first key.
#[inline(always)]
pub(super) unsafe fn widest_block<V: Lanes, T: Tile>(
    tile: &T,
    query: &Query<'_>,
    head_dim: usize,
    start: usize,
    row: usize,
    scratch: &mut Scratch,
) -> usize {
    let rows = query.tokens * query.group - row;
    // SAFETY: later rows see no fewer keys.
    unsafe {
        if V::WIDE && T::MANY_ROWS {
            if rows >= BLOCK {
                block::<V, T, BLOCK>(tile, query, head_dim, start, row, scratch);
                return BLOCK;
            }
            if rows >= 4 {
                block::<V, T, 4>(tile, query, head_dim, start, row, scratch);
                return 4;
            }
            if rows == 3 {
                block::<V, T, 3>(tile, query, head_dim, start, row, scratch);
                return 3;
            }
        }
        if T::MANY_ROWS && rows >= 2 {
            block::<V, T, 2>(tile, query, head_dim, start, row, scratch);
            return 2;
        }
        block::<V, T, 1>(tile, query, head_dim, start, row, scratch);
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
        *seen = TILE.min(query.position + (row + r) / query.group + 1 - start);
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
        for r in 0..R {
            let mut state = state(scratch.parts.row(row + r), head_dim);
            let (scores, weights) = (scores.add(r * TILE), weights.add(r * TILE));
            weigh::<V, T>(scores, seen[r], weights, &mut state);
        }
        let (sums, stride) = (scratch.parts.row(row), part_values(head_dim));
        let columns = head_dim.div_ceil(LANES);
        let mut column = 0;
        while column < columns {
            let sums = sums.add(column * LANES);
            // More sums than registers beside the operands would be kept in memory.
            if V::WIDE && R <= 4 && column + 4 <= columns {
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
