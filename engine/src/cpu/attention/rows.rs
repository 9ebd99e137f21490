//! The three loops over a tile that each row of a block goes through: scores, weights, values.
//!
//! Every row has its own chain of operations; rows only share loads. Which rows and tiles meet is
//! not decided here.

use super::{PAIRS, TILE, VECTORS, tile::Tile};
use crate::cpu::lanes::{LANES, Lanes};

/// Running sums below this become zero when they are scaled down, so that none is ever subnormal:
/// what is added to them is a multiple of 2^-114.
const FLUSH: f32 = f32::from_bits((127 - 100) << 23);

/// A row's weights are relative to its largest score only once that exceeds the one before by so many
/// powers of two: until then they may be as large as two to its power. Mostly, a row's first tile sets
/// what holds for the rest, and no branch is mispredicted for the sake of a slightly larger score.
const HEADROOM: f32 = 8.0;

/// Scores of `R` rows against the tile's first `vectors` vectors of keys.
///
/// # Safety
/// `queries` points to `R` rows of `2 * pairs` values, `scores` to `R` rows of [`TILE`].
#[inline(always)]
pub(super) unsafe fn score<V: Lanes, T: Tile, const R: usize>(
    tile: &T,
    queries: *const T::Operand,
    pairs: usize,
    vectors: usize,
    scores: *mut f32,
) {
    // SAFETY: `vector + C <= vectors` in each call.
    unsafe {
        if V::WIDE && vectors == VECTORS {
            return score_vectors::<V, T, R, VECTORS>(tile, queries, pairs, 0, scores);
        }
        let mut vector = 0;
        while vector + 2 <= vectors {
            score_vectors::<V, T, R, 2>(tile, queries, pairs, vector, scores);
            vector += 2;
        }
        if vector < vectors {
            score_vectors::<V, T, R, 1>(tile, queries, pairs, vector, scores);
        }
    }
}

/// # Safety
/// As [`score`], for vectors `vector..vector + C`.
#[inline(always)]
unsafe fn score_vectors<V: Lanes, T: Tile, const R: usize, const C: usize>(
    tile: &T,
    queries: *const T::Operand,
    pairs: usize,
    vector: usize,
    scores: *mut f32,
) {
    let mut sums = [[V::splat(0.0); C]; R];
    for pair in 0..pairs {
        // SAFETY: the vectors and the pair exist.
        unsafe {
            tile.fetch_keys(vector..vector + C, pair);
            let mut keys = [tile.keys::<V>(vector, pair); C];
            for (c, keys) in keys.iter_mut().enumerate().skip(1) {
                *keys = tile.keys(vector + c, pair);
            }
            for r in 0..R {
                let x = queries.add(2 * (r * pairs + pair));
                for c in 0..C {
                    sums[r][c] = T::dot(sums[r][c], keys[c], x);
                }
            }
        }
    }
    for (r, row) in sums.iter().enumerate() {
        for (c, sum) in row.iter().enumerate() {
            // SAFETY: row `r` of the scores.
            unsafe { sum.store(scores.add(r * TILE + (vector + c) * LANES)) };
        }
    }
}

/// A row's running softmax.
pub(super) struct RowState<'a> {
    /// Largest score so far, or one that is less by at most [`HEADROOM`].
    pub(super) largest: &'a mut f32,
    /// Sums of weights: [`LANES`] of them.
    pub(super) totals: *mut f32,
    /// Sums of weighted values: `width` of them.
    pub(super) sums: *mut f32,
    pub(super) width: usize,
}

/// Turns a row's first `seen` scores into weights (the rest become 0) relative to its largest score
/// so far.
///
/// # Safety
/// `scores` points to a row of [`TILE`]; the state's pointers to what it says.
#[inline(always)]
pub(super) unsafe fn soften<V: Lanes>(
    scores: *const f32,
    seen: usize,
    state: &mut RowState<'_>,
) -> [V; VECTORS] {
    let zero = V::splat(0.0);
    // SAFETY: a row has `VECTORS` vectors.
    unsafe {
        let mut row = [zero; VECTORS];
        for (v, lanes) in row.iter_mut().enumerate() {
            *lanes = V::load(scores.add(v * LANES));
        }
        if seen < TILE {
            for (v, lanes) in row.iter_mut().enumerate() {
                let hidden = V::splat(f32::NEG_INFINITY);
                *lanes = lanes.first(seen.saturating_sub(v * LANES), hidden);
            }
        }
        let [a, b, c, d] = row;
        let peaks = a.max(b).max(c.max(d));
        if peaks.any_greater(V::splat(*state.largest + HEADROOM)) {
            rescale::<V>(peaks.largest(), state);
        }
        let largest = V::splat(*state.largest);
        for (v, lanes) in row.iter_mut().enumerate() {
            *lanes = lanes.sub(largest).exp2();
            if seen < TILE {
                // Where nothing was seen yet, a hidden score less the largest is not a number.
                *lanes = lanes.first(seen.saturating_sub(v * LANES), zero);
            }
        }
        row
    }
}

/// Turns a row's first `seen` scores into weights, rounded, and adds them to its totals.
///
/// # Safety
/// `scores` and `weights` point to a row of [`TILE`]; the state's pointers to what it says.
#[inline(always)]
pub(super) unsafe fn weigh<V: Lanes, T: Tile>(
    scores: *const f32,
    seen: usize,
    weights: *mut T::Operand,
    state: &mut RowState<'_>,
) {
    // SAFETY: the caller's promise; totals are one vector.
    unsafe {
        let row = soften::<V>(scores, seen, state);
        let mut totals = V::load(state.totals);
        for v in (0..VECTORS).step_by(2) {
            let stored = T::store(row[v], row[v + 1], weights.add(v * LANES));
            totals = T::add_all(totals, stored);
        }
        totals.store(state.totals);
    }
}

/// Makes `largest` a row's largest score and scales its sums accordingly.
///
/// # Safety
/// The state's pointers are good for what it says.
#[inline(always)]
unsafe fn rescale<V: Lanes>(largest: f32, state: &mut RowState<'_>) {
    let kept = V::splat(*state.largest - largest).exp2();
    *state.largest = largest;
    // SAFETY: totals are one vector, sums `width / LANES` vectors.
    unsafe {
        let totals = V::load(state.totals).mul(kept).without_below(FLUSH);
        totals.store(state.totals);
        for column in (0..state.width).step_by(LANES) {
            let sums = state.sums.add(column);
            V::load(sums).mul(kept).without_below(FLUSH).store(sums);
        }
    }
}

/// `sums += weights * values` for `R` rows and `D` vectors of dimensions from vector `column` on:
/// over the pairs of keys that every row sees, then, row by row, over the keys up to `seen`.
///
/// # Safety
/// `weights` points to `R` rows of [`TILE`], `sums` to the first column of `R` rows of `width`; `seen`
/// rises and the tile was opened for the last.
#[inline(always)]
pub(super) unsafe fn gather_values<V: Lanes, T: Tile, const R: usize, const D: usize>(
    tile: &T,
    weights: *const T::Operand,
    seen: [usize; R],
    sums: *mut f32,
    width: usize,
    column: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[V::splat(0.0); D]; R];
        for r in 0..R {
            for d in 0..D {
                acc[r][d] = V::load(sums.add(r * width + d * LANES));
            }
        }
        let pairs = seen[0] / 2;
        for vector in 0..pairs.div_ceil(PAIRS) {
            let weights = weights.add(vector * LANES);
            for pair in 0..PAIRS.min(pairs - vector * PAIRS) {
                tile.fetch_values((vector, pair), column..column + D);
                let mut values = [tile.values::<V>((vector, pair), column); D];
                for (d, values) in values.iter_mut().enumerate().skip(1) {
                    *values = tile.values((vector, pair), column + d);
                }
                for r in 0..R {
                    let x = weights.add(r * TILE + 2 * pair);
                    for d in 0..D {
                        acc[r][d] = T::dot(acc[r][d], values[d], x);
                    }
                }
            }
        }
        for r in 0..R {
            for d in 0..D {
                acc[r][d].store(sums.add(r * width + d * LANES));
            }
        }
        if !seen[0].is_multiple_of(2) || seen[0] != seen[R - 1] {
            for (r, &seen_here) in seen.iter().enumerate() {
                let keys = (seen[0] / 2, seen_here);
                let (weights, sums) = (weights.add(r * TILE), sums.add(r * width));
                gather_rest::<V, T, D>(tile, weights, keys, sums, column);
            }
        }
    }
}

/// As [`gather_values`] for one row, from a pair of keys up to the last key that it sees.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn gather_rest<V: Lanes, T: Tile, const D: usize>(
    tile: &T,
    weights: *const T::Operand,
    (pair, seen): (usize, usize),
    sums: *mut f32,
    column: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for d in 0..D {
            let mut sum = V::load(sums.add(d * LANES));
            for pair in pair..seen.div_ceil(2) {
                let mut values = tile.values::<V>((pair / PAIRS, pair % PAIRS), column + d);
                if 2 * pair + 1 == seen {
                    // The second key of the last pair may be anything, even not-a-number.
                    values = T::first_only::<V>(values);
                }
                sum = T::dot(sum, values, weights.add(2 * pair));
            }
            sum.store(sums.add(d * LANES));
        }
    }
}
