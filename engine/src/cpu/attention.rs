//! Attention of some query rows of one KV head over the pages of one sequence.
//!
//! Keys are visited in tiles of [`TILE`] absolute positions, whatever the page size. Per query row:
//! scores are sums over the dimensions in order, a tile's largest score updates the running maximum,
//! and weights times values are added key by key. So a row's bits depend on its own query and on
//! the keys up to its position alone, never on the rows computed beside it.
#![allow(unsafe_code)] // Vector kernels over raw rows; each function names what it needs.

use baton_kv_cache::{KvDtype, PageIndex};

use super::{
    lanes::{LANES, Lanes, lanes_kernel},
    pages::{Bf16, Element, Pages, paired},
};
use crate::Isa;

/// Keys of a tile.
pub(crate) const TILE: usize = 64;
/// Vectors of a tile.
const VECTORS: usize = TILE / LANES;
/// Most query rows that a kernel keeps in registers.
const BLOCK: usize = 4;
/// Query rows that one task should have, at least one token's.
const TASK_ROWS: usize = 64;

/// What one call computes: `tokens * group` rows of one KV head.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    /// The sequence's page table.
    pub(crate) pages: &'a [PageIndex],
    /// Layer.
    pub(crate) layer: u32,
    /// KV head.
    pub(crate) kv_head: usize,
    /// Query heads that share it.
    pub(crate) group: usize,
    /// Absolute position of the first token.
    pub(crate) position: usize,
    /// Tokens.
    pub(crate) tokens: usize,
    /// Rotated and scaled queries: first token, first head of the group; heads are neighbours.
    pub(crate) queries: *const f32,
    /// Values between tokens of `queries`.
    pub(crate) query_stride: usize,
    /// Results, arranged like `queries`.
    pub(crate) out: *mut f32,
    /// Values between tokens of `out`.
    pub(crate) out_stride: usize,
}

/// Tokens of one task for a group of this size.
pub(crate) const fn task_tokens(group: usize) -> usize {
    if group >= TASK_ROWS {
        1
    } else {
        TASK_ROWS / group
    }
}

/// Working memory of one thread.
pub(crate) struct Scratch {
    /// Running sums of weighted values: rows of `width`.
    sums: Vec<f32>,
    /// Running maximum of each row.
    largest: Vec<f32>,
    /// Running sum of weights of each row.
    totals: Vec<f32>,
    /// Scores, then weights, of a block of rows over a tile.
    scores: [f32; BLOCK * TILE],
    /// Keys of a tile: `head_dim` rows of [`TILE`].
    keys: Vec<f32>,
    /// Values of a tile: [`TILE`] rows of `width`.
    values: Vec<f32>,
    /// `head_dim` in whole vectors.
    width: usize,
}

impl Scratch {
    /// For heads of `head_dim` and `group` query heads each.
    pub(crate) fn new(head_dim: usize, group: usize) -> Self {
        let (rows, width) = (task_tokens(group) * group, head_dim.next_multiple_of(LANES));
        Self {
            sums: vec![0.0; rows * width],
            largest: vec![0.0; rows],
            totals: vec![0.0; rows],
            scores: [0.0; BLOCK * TILE],
            keys: vec![0.0; head_dim * TILE],
            values: vec![0.0; TILE * width],
            width,
        }
    }
}

/// Computes `query` over `pages`.
///
/// # Safety
/// `query`'s pointers are good for its tokens and group; its page table covers all positions up to
/// the last token's; nobody writes those slots of the pages or touches `out`'s rows meanwhile.
pub(crate) unsafe fn attend(isa: Isa, pages: &Pages, query: &Query<'_>, scratch: &mut Scratch) {
    let layout = pages.layout();
    let head_dim = layout.head_dim as usize;
    let rows = query.tokens * query.group;
    assert!(rows <= scratch.totals.len() && head_dim.next_multiple_of(LANES) == scratch.width);
    let whole_vectors =
        head_dim.is_multiple_of(LANES) && (layout.page_size as usize).is_multiple_of(LANES);
    // SAFETY: the caller's promise; `scratch` is large enough, as asserted.
    unsafe {
        if whole_vectors && layout.dtype == KvDtype::Bf16 {
            attend_in_place(isa, pages, query, scratch);
        } else {
            attend_gathered(isa, pages, query, scratch);
        }
    }
}

lanes_kernel! {
    unsafe fn attend_in_place(pages: &Pages, query: &Query<'_>, scratch: &mut Scratch) = in_place_body
}
lanes_kernel! {
    unsafe fn attend_gathered(pages: &Pages, query: &Query<'_>, scratch: &mut Scratch) = gathered_body
}

#[inline(always)]
unsafe fn in_place_body<V: Lanes>(pages: &Pages, query: &Query<'_>, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { all_tiles::<V, InPlace>(pages, query, scratch) }
}

#[inline(always)]
unsafe fn gathered_body<V: Lanes>(pages: &Pages, query: &Query<'_>, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { all_tiles::<V, Gathered>(pages, query, scratch) }
}

/// Keys and values of one tile.
trait Tile {
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
struct InPlace {
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
struct Gathered {
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

#[inline(always)]
unsafe fn all_tiles<V: Lanes, T: Tile>(pages: &Pages, query: &Query<'_>, scratch: &mut Scratch) {
    let rows = query.tokens * query.group;
    let head_dim = pages.layout().head_dim as usize;
    scratch.sums[..rows * scratch.width].fill(0.0);
    scratch.largest[..rows].fill(f32::NEG_INFINITY);
    scratch.totals[..rows].fill(0.0);
    let end = query.position + query.tokens;
    for start in (0..end).step_by(TILE) {
        // SAFETY: the page table covers all positions before `end`.
        let tile = unsafe { T::open(pages, query, start, TILE.min(end - start), scratch) };
        // Rows of tokens before the tile see none of it.
        let mut row = start.saturating_sub(query.position) * query.group;
        while row < rows {
            let count = BLOCK.min(rows - row);
            // SAFETY: rows `row..row + count` exist and see at least one key of the tile.
            unsafe {
                match count {
                    4 => block::<V, T, 4>(&tile, query, head_dim, start, row, scratch),
                    3 => block::<V, T, 3>(&tile, query, head_dim, start, row, scratch),
                    2 => block::<V, T, 2>(&tile, query, head_dim, start, row, scratch),
                    _ => block::<V, T, 1>(&tile, query, head_dim, start, row, scratch),
                }
            }
            row += count;
        }
    }
    for row in 0..rows {
        let total = scratch.totals[row];
        // SAFETY: the caller's promise about `out`.
        let out = unsafe {
            let token = query.out.add(row / query.group * query.out_stride);
            std::slice::from_raw_parts_mut(token.add(row % query.group * head_dim), head_dim)
        };
        let sums = &scratch.sums[row * scratch.width..][..head_dim];
        out.iter_mut()
            .zip(sums)
            .for_each(|(out, sum)| *out = sum / total);
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
    let Query {
        position,
        group,
        queries,
        query_stride,
        ..
    } = *query;
    // Keys of the tile that each row sees.
    let seen: [usize; R] =
        std::array::from_fn(|r| TILE.min(position + (row + r) / group + 1 - start));
    // SAFETY: the caller's promise about `queries`.
    let queries: [*const f32; R] = std::array::from_fn(|r| unsafe {
        queries.add((row + r) / group * query_stride + (row + r) % group * head_dim)
    });
    let scores = scratch.scores.as_mut_ptr();
    // SAFETY: the last row sees the most keys; the tile was opened for at least as many.
    unsafe {
        score::<V, T, R>(
            tile,
            queries,
            head_dim / 2,
            seen[R - 1].div_ceil(LANES),
            scores,
        )
    };
    let mut kept = [0.0; R];
    for r in 0..R {
        let (largest, total) = (&mut scratch.largest[row + r], &mut scratch.totals[row + r]);
        // SAFETY: row `r` of the scores.
        kept[r] = unsafe { weigh::<V>(scores.add(r * TILE), seen[r], largest, total) };
    }
    let width = scratch.width;
    let sums = scratch.sums[row * width..(row + R) * width].as_mut_ptr();
    let columns = width / LANES;
    // SAFETY: `R` rows of sums and weights; every row sees `seen[0]` keys.
    unsafe {
        let common = (0, seen[0]);
        let mut column = 0;
        while column < columns {
            let many = if columns - column >= 4 { 4 } else { 1 };
            if many == 4 {
                gather_values::<V, T, R, 4>(
                    tile,
                    scores,
                    kept,
                    common,
                    sums.add(column * LANES),
                    width,
                    column,
                );
            } else {
                gather_values::<V, T, R, 1>(
                    tile,
                    scores,
                    kept,
                    common,
                    sums.add(column * LANES),
                    width,
                    column,
                );
            }
            column += many;
        }
        for r in 1..R {
            if seen[r] > seen[0] {
                let (scores, sums) = (scores.add(r * TILE), sums.add(r * width));
                for column in 0..columns {
                    gather_values::<V, T, 1, 1>(
                        tile,
                        scores,
                        [1.0],
                        (seen[0], seen[r]),
                        sums.add(column * LANES),
                        width,
                        column,
                    );
                }
            }
        }
    }
}

/// Scores of `R` rows against the tile's first `vectors` vectors of keys.
///
/// # Safety
/// `queries` point to `2 * pairs` values, `scores` to `R` rows of [`TILE`].
#[inline(always)]
unsafe fn score<V: Lanes, T: Tile, const R: usize>(
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
unsafe fn weigh<V: Lanes>(
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
unsafe fn gather_values<V: Lanes, T: Tile, const R: usize, const D: usize>(
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
