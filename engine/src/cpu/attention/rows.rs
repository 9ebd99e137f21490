//! The three loops over a tile that each row of a block goes through: scores, weights, values.
//!
//! Every row has its own chain of operations; rows only share loads. Which rows and tiles meet is
//! not decided here.

use super::{TILE, Tile, VECTORS};
use crate::cpu::lanes::{LANES, Lanes};

/// Scores of `R` rows against the tile's first `vectors` vectors of keys.
///
/// # Safety
/// `queries` point to `2 * pairs` values, `scores` to `R` rows of [`TILE`].
#[inline(always)]
pub(super) unsafe fn score<V: Lanes, T: Tile, const R: usize>(
    tile: &T,
    queries: [*const f32; R],
    pairs: usize,
    vectors: usize,
    scores: *mut f32,
) {
    // SAFETY: `vector + C <= vectors` in each call.
    unsafe {
        match vectors {
            4 => score_vectors::<V, T, R, 4>(tile, queries, pairs, 0, scores),
            3 => {
                score_vectors::<V, T, R, 2>(tile, queries, pairs, 0, scores);
                score_vectors::<V, T, R, 1>(tile, queries, pairs, 2, scores);
            }
            2 => score_vectors::<V, T, R, 2>(tile, queries, pairs, 0, scores),
            _ => score_vectors::<V, T, R, 1>(tile, queries, pairs, 0, scores),
        }
    }
}

/// # Safety
/// As [`score`], for vectors `vector..vector + C`.
#[inline(always)]
unsafe fn score_vectors<V: Lanes, T: Tile, const R: usize, const C: usize>(
    tile: &T,
    queries: [*const f32; R],
    pairs: usize,
    vector: usize,
    scores: *mut f32,
) {
    let mut sums = [[V::splat(0.0); C]; R];
    for pair in 0..pairs {
        // SAFETY: the vectors and the pair exist.
        unsafe {
            let mut keys = [(V::splat(0.0), V::splat(0.0)); C];
            for (c, keys) in keys.iter_mut().enumerate() {
                *keys = tile.keys(vector + c, pair);
            }
            for r in 0..R {
                let first = V::splat(*queries[r].add(2 * pair));
                let second = V::splat(*queries[r].add(2 * pair + 1));
                for c in 0..C {
                    sums[r][c] = keys[c].1.fma(second, keys[c].0.fma(first, sums[r][c]));
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

/// Turns a row's first `seen` scores into weights (the rest become 0), updates its maximum and
/// total, and returns the factor that keeps its older sums in proportion.
///
/// # Safety
/// `scores` points to a row of [`TILE`].
#[inline(always)]
pub(super) unsafe fn weigh<V: Lanes>(
    scores: *mut f32,
    seen: usize,
    largest: &mut f32,
    total: &mut f32,
) -> f32 {
    let hidden = V::splat(f32::NEG_INFINITY);
    // SAFETY: a row has `VECTORS` vectors.
    unsafe {
        let mut row = [hidden; VECTORS];
        for (v, lanes) in row.iter_mut().enumerate() {
            *lanes = V::load(scores.add(v * LANES)).first(seen.saturating_sub(v * LANES), hidden);
        }
        let [a, b, c, d] = row;
        let peak = a.max(b).max(c.max(d)).largest();
        let peak = if *largest > peak { *largest } else { peak };
        for (v, lanes) in row.iter_mut().enumerate() {
            *lanes = lanes.sub(V::splat(peak)).exp();
            lanes.store(scores.add(v * LANES));
        }
        let [a, b, c, d] = row;
        let kept = V::splat(*largest - peak).exp().largest();
        *total = kept.mul_add(*total, a.add(b).add(c.add(d)).sum());
        *largest = peak;
        kept
    }
}

/// `sums = sums * kept + weights * values` over keys `from..to`, in order, for `R` rows and `D`
/// vectors of dimensions from vector `column` on.
///
/// # Safety
/// `weights` points to `R` rows of [`TILE`], `sums` to the first column of `R` rows of `width`.
#[inline(always)]
pub(super) unsafe fn gather_values<V: Lanes, T: Tile, const R: usize, const D: usize>(
    tile: &T,
    weights: *const f32,
    kept: [f32; R],
    (from, to): (usize, usize),
    sums: *mut f32,
    width: usize,
    column: usize,
) {
    // SAFETY: the caller's promise; keys of a pair outside `from..to` are not used.
    unsafe {
        let mut acc = [[V::splat(0.0); D]; R];
        for r in 0..R {
            for d in 0..D {
                acc[r][d] = V::load(sums.add(r * width + d * LANES)).mul(V::splat(kept[r]));
            }
        }
        for pair in from / 2..to.div_ceil(2) {
            let mut values = [(V::splat(0.0), V::splat(0.0)); D];
            for (d, values) in values.iter_mut().enumerate() {
                *values = tile.values(pair, column + d);
            }
            if 2 * pair >= from {
                for r in 0..R {
                    let weight = V::splat(*weights.add(r * TILE + 2 * pair));
                    for d in 0..D {
                        acc[r][d] = values[d].0.fma(weight, acc[r][d]);
                    }
                }
            }
            if 2 * pair + 1 < to {
                for r in 0..R {
                    let weight = V::splat(*weights.add(r * TILE + 2 * pair + 1));
                    for d in 0..D {
                        acc[r][d] = values[d].1.fma(weight, acc[r][d]);
                    }
                }
            }
        }
        for r in 0..R {
            for d in 0..D {
                acc[r][d].store(sums.add(r * width + d * LANES));
            }
        }
    }
}
