//! Attention of some query rows of one KV head over the pages of one sequence.
//!
//! Keys are visited in tiles of [`TILE`] absolute positions, whatever the page size. Per query row:
//! scores are sums over the dimensions in order, a tile's largest score updates the running maximum,
//! and weights times values are added key by key. So a row's bits depend on its own query and on
//! the keys up to its position alone, never on the rows computed beside it.
//!
//! It must not know where a batch's rows come from, or how tasks are divided among threads.
#![allow(unsafe_code)] // Vector kernels over raw rows; each function names what it needs.

mod rows;
mod tile;

use baton_kv_cache::{KvDtype, PageIndex};

use self::{
    rows::{gather_values, score, weigh},
    tile::{Gathered, InPlace, Tile},
};
use super::{
    lanes::{LANES, Lanes, lanes_kernel},
    pages::Pages,
};
use crate::Isa;

/// Keys of a tile.
pub(crate) const TILE: usize = 64;
/// Vectors of a tile.
const VECTORS: usize = TILE / LANES;
/// Vectors of dimensions that a kernel keeps in registers for each row.
const COLUMNS: usize = 4;
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
    pub(crate) stride: usize,
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
        stride,
        ..
    } = *query;
    // Keys of the tile that each row sees.
    let seen: [usize; R] =
        std::array::from_fn(|r| TILE.min(position + (row + r) / group + 1 - start));
    // SAFETY: the caller's promise about `queries`.
    let queries: [*const f32; R] = std::array::from_fn(|r| unsafe {
        queries.add((row + r) / group * stride + (row + r) % group * head_dim)
    });
    let scores = scratch.scores.as_mut_ptr();
    // SAFETY: the last row sees the most keys; the tile was opened for at least as many.
    unsafe {
        let vectors = seen[R - 1].div_ceil(LANES);
        score::<V, T, R>(tile, queries, head_dim / 2, vectors, scores);
    }
    let mut kept = [0.0; R];
    for r in 0..R {
        let (largest, total) = (&mut scratch.largest[row + r], &mut scratch.totals[row + r]);
        // SAFETY: row `r` of the scores.
        kept[r] = unsafe { weigh::<V>(scores.add(r * TILE), seen[r], largest, total) };
    }
    let width = scratch.width;
    let sums = scratch.sums[row * width..(row + R) * width].as_mut_ptr();
    for column in (0..width / LANES).step_by(COLUMNS) {
        let whole = width / LANES - column >= COLUMNS;
        let columns = if whole {
            COLUMNS
        } else {
            width / LANES - column
        };
        // SAFETY: `R` rows of sums and weights; every row sees `seen[0]` keys, row `r` `seen[r]`.
        unsafe {
            let common = (0, seen[0]);
            let sums = sums.add(column * LANES);
            if whole {
                gather_values::<V, T, R, COLUMNS>(tile, scores, kept, common, sums, width, column);
            }
            for at in 0..columns {
                let (sums, column) = (sums.add(at * LANES), column + at);
                if !whole {
                    gather_values::<V, T, R, 1>(tile, scores, kept, common, sums, width, column);
                }
                for r in 1..R {
                    let (scores, sums) = (scores.add(r * TILE), sums.add(r * width));
                    let rest = (seen[0], seen[r]);
                    if rest.0 < rest.1 {
                        gather_values::<V, T, 1, 1>(tile, scores, [1.0], rest, sums, width, column);
                    }
                }
            }
        }
    }
}
