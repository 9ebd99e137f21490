//! Attention of some query rows over the pages of one sequence.
//!
//! Keys are visited in tiles of [`TILE`] absolute positions, whatever the page size. Per query row:
//! scores are sums over the dimensions in order, a larger score than any before scales the sums down,
//! and weights times values are added key by key; spans of [`SPAN`] positions have their own maximum
//! and sums and are joined in order. So a row's bits depend on its own query and on the keys up to
//! its position alone, never on the rows computed beside it or on who computed which span.
//!
//! Over bf16 pages, queries and weights are rounded to bf16, and two products at a time are added
//! with the roundings of the bf16 unit, which plain multiply-adds have too as long as nothing is
//! subnormal: tiny values of K, V, queries and weights count as zero.
//!
//! Over 8-bit pages, queries and weights become integers of two digits, whose products with the codes
//! are added without rounding; what a tile gives is then scaled and added in f32.
//!
//! It must not know where a batch's rows come from, or how tasks are divided among threads.
#![allow(unsafe_code)] // Vector kernels over raw rows; each function names what it needs.

mod block;
mod codes;
mod in_place;
mod rows;
mod span;
#[cfg(test)]
mod tests;
mod tile;

use std::ops::Range;

use baton_kv_cache::{KvDtype, PageIndex};

pub(crate) use self::span::{join_all, part_values, spans};
use self::{
    block::{Kernel, widest_block},
    codes::{Codes, QueryCodes},
    in_place::InPlace,
    span::{Parts, SPAN, finish, join},
    tile::{Floats, Halves, TileMemory},
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
/// Pairs of keys of a vector.
const PAIRS: usize = LANES / 2;
/// Most query rows that a kernel keeps in registers.
const BLOCK: usize = 6;
/// Query rows that one task should have, at least one token's.
const TASK_ROWS: usize = 64;
/// With at most so many rows, pages are fetched ahead: reading them is what takes the time.
const FETCH_ROWS: usize = 16;

/// What one call computes: `heads * tokens * group` rows, those of a head together.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    /// The sequence's page table.
    pub(crate) pages: &'a [PageIndex],
    /// Layer.
    pub(crate) layer: u32,
    /// First KV head.
    pub(crate) kv_head: usize,
    /// KV heads; several of them only for a single token. A page is then read from its beginning to its
    /// end, as the processor's own fetching ahead likes it.
    pub(crate) heads: usize,
    /// Query heads that share it.
    pub(crate) group: usize,
    /// Absolute position of the first token.
    pub(crate) position: usize,
    /// Tokens.
    pub(crate) tokens: usize,
    /// Rotated and scaled queries: first token, first head of the group; heads are neighbours, and
    /// [`LANES`] values after the last may be read.
    pub(crate) queries: *const f32,
    /// Values between tokens of `queries`.
    pub(crate) stride: usize,
    /// Results, arranged like `queries`.
    pub(crate) out: *mut f32,
    /// Values between tokens of `out`.
    pub(crate) out_stride: usize,
}

impl Query<'_> {
    /// Query rows of one KV head.
    fn rows_of_head(&self) -> usize {
        self.tokens * self.group
    }

    /// All query rows.
    fn rows(&self) -> usize {
        self.heads * self.rows_of_head()
    }

    /// Token of `row`, from the query's first on.
    fn token(&self, row: usize) -> usize {
        row % self.rows_of_head() / self.group
    }

    /// Where `row` is in queries or results whose tokens are `stride` values apart.
    fn place(&self, row: usize, head_dim: usize, stride: usize) -> usize {
        let head = row / self.rows_of_head() * self.group + row % self.group;
        self.token(row) * stride + head * head_dim
    }
}

/// Tokens of one task for a group of this size.
pub(crate) const fn task_tokens(group: usize) -> usize {
    if group >= TASK_ROWS {
        1
    } else {
        TASK_ROWS / group
    }
}

/// KV heads that one task for single tokens may have.
pub(crate) const fn most_heads(group: usize) -> usize {
    task_tokens(group)
}

/// Working memory of one thread.
pub(crate) struct Scratch {
    /// Rows of queries: `head_dim` values each, f32 or narrower.
    queries: Vec<f32>,
    /// The same as digits.
    query_codes: QueryCodes,
    /// The current span's part of each row.
    parts: Parts,
    /// What the spans before gave.
    joined: Parts,
    /// Scores of the rows of a kernel over a tile.
    scores: [f32; BLOCK * TILE],
    /// Their weights, f32 or narrower.
    weights: [f32; BLOCK * TILE],
    tile: TileMemory,
}

impl Scratch {
    /// For heads of `head_dim` and `group` query heads each.
    pub(crate) fn new(head_dim: usize, group: usize) -> Self {
        let rows = task_tokens(group) * group;
        Self {
            queries: vec![0.0; rows * head_dim + 2 * LANES],
            query_codes: QueryCodes::new(rows, head_dim),
            parts: Parts::new(rows, head_dim),
            joined: Parts::new(rows, head_dim),
            scores: [0.0; BLOCK * TILE],
            weights: [0.0; BLOCK * TILE],
            tile: TileMemory::new(head_dim),
        }
    }
}

/// Computes `query` over `pages`.
///
/// # Safety
/// `query`'s pointers are good for its tokens and group; its page table covers all positions up to
/// the last token's; nobody writes those slots of the pages or touches `out`'s rows meanwhile.
pub(crate) unsafe fn attend(isa: Isa, pages: &Pages, query: &Query<'_>, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(isa, pages, query, None, scratch) }
}

/// Computes one span of a query of one token and leaves the rows' parts, [`part_values`] values each,
/// at `parts`, `stride` values apart; `query.out` is not used.
///
/// # Safety
/// As [`attend`]; the rows see the span; `parts` is good for them and the caller's own.
pub(crate) unsafe fn attend_span(
    isa: Isa,
    pages: &Pages,
    query: &Query<'_>,
    span: usize,
    (parts, stride): (*mut f32, usize),
    scratch: &mut Scratch,
) {
    assert!(query.tokens == 1 && span < spans(query.position));
    // SAFETY: the caller's promise.
    unsafe {
        dispatch(isa, pages, query, Some(span), scratch);
        let values = part_values(pages.layout().head_dim as usize);
        for row in 0..query.rows() {
            let part = scratch.parts.row(row);
            parts
                .add(row * stride)
                .copy_from_nonoverlapping(part, values);
        }
    }
}

/// # Safety
/// As [`attend`].
unsafe fn dispatch(
    isa: Isa,
    pages: &Pages,
    query: &Query<'_>,
    span: Option<usize>,
    scratch: &mut Scratch,
) {
    let layout = pages.layout();
    let whole_vectors = layout.head_dim.is_multiple_of(LANES as u32)
        && layout.page_size.is_multiple_of(LANES as u32);
    assert!(query.rows() <= scratch.parts.rows() && (query.heads == 1 || query.tokens == 1));
    // SAFETY: the caller's promise; `scratch` is large enough, as asserted.
    unsafe {
        match layout.dtype {
            KvDtype::Bf16 if whole_vectors => in_place(isa, pages, query, span, scratch),
            KvDtype::Bf16 => halves(isa, pages, query, span, scratch),
            KvDtype::F16 | KvDtype::F32 => floats(isa, pages, query, span, scratch),
            KvDtype::Int8 => codes(isa, pages, query, span, scratch),
        }
    }
}

lanes_kernel! {
    unsafe fn in_place(pages: &Pages, query: &Query<'_>, span: Option<usize>, scratch: &mut Scratch)
        = in_place_body
}
lanes_kernel! {
    unsafe fn halves(pages: &Pages, query: &Query<'_>, span: Option<usize>, scratch: &mut Scratch)
        = halves_body
}
lanes_kernel! {
    unsafe fn floats(pages: &Pages, query: &Query<'_>, span: Option<usize>, scratch: &mut Scratch)
        = floats_body
}
lanes_kernel! {
    unsafe fn codes(pages: &Pages, query: &Query<'_>, span: Option<usize>, scratch: &mut Scratch)
        = codes_body
}

#[inline(always)]
unsafe fn in_place_body<V: Lanes>(
    pages: &Pages,
    query: &Query<'_>,
    span: Option<usize>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's promise.
    unsafe { all_spans::<V, InPlace>(pages, query, span, scratch) }
}

#[inline(always)]
unsafe fn halves_body<V: Lanes>(
    pages: &Pages,
    query: &Query<'_>,
    span: Option<usize>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's promise.
    unsafe { all_spans::<V, Halves>(pages, query, span, scratch) }
}

#[inline(always)]
unsafe fn floats_body<V: Lanes>(
    pages: &Pages,
    query: &Query<'_>,
    span: Option<usize>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's promise.
    unsafe { all_spans::<V, Floats>(pages, query, span, scratch) }
}

#[inline(always)]
unsafe fn codes_body<V: Lanes>(
    pages: &Pages,
    query: &Query<'_>,
    span: Option<usize>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's promise.
    unsafe { all_spans::<V, Codes>(pages, query, span, scratch) }
}

/// One span into the parts, or all of them into the results.
#[inline(always)]
unsafe fn all_spans<V: Lanes, K: Kernel>(
    pages: &Pages,
    query: &Query<'_>,
    span: Option<usize>,
    scratch: &mut Scratch,
) {
    let head_dim = pages.layout().head_dim as usize;
    let rows = query.rows();
    let end = query.position + query.tokens;
    // SAFETY: the caller's promise; scratch has room for the rows.
    unsafe {
        K::round_queries::<V>(query, head_dim, scratch);
        if let Some(span) = span {
            let keys = span * SPAN..end.min((span + 1) * SPAN);
            return one_span::<V, K>(pages, query, keys, scratch);
        }
        let last = spans(end - 1) - 1;
        for span in 0..=last {
            let keys = span * SPAN..end.min((span + 1) * SPAN);
            // Rows of tokens before the span see none of it.
            let first = keys.start.saturating_sub(query.position) * query.group;
            one_span::<V, K>(pages, query, keys, scratch);
            for row in first..rows {
                let (part, joined) = (scratch.parts.row(row), scratch.joined.row(row));
                if span > 0 {
                    join::<V>(joined, part, head_dim);
                } else if last > 0 {
                    joined.copy_from_nonoverlapping(part, part_values(head_dim));
                }
            }
        }
        for row in 0..rows {
            let part = if last > 0 {
                scratch.joined.row(row)
            } else {
                scratch.parts.row(row)
            };
            let out = query.place(row, head_dim, query.out_stride);
            finish::<V>(part, head_dim, query.out.add(out));
        }
    }
}

/// Takes the tiles of `keys`, which lie in one span, into the parts of the rows that see them.
#[inline(always)]
unsafe fn one_span<V: Lanes, K: Kernel>(
    pages: &Pages,
    query: &Query<'_>,
    keys: Range<usize>,
    scratch: &mut Scratch,
) {
    let rows = query.rows_of_head();
    let head_dim = pages.layout().head_dim as usize;
    scratch.parts.begin(query.rows());
    let unit = |index: usize| {
        let start = keys.start + index / query.heads * TILE;
        let one = Query {
            kv_head: query.kv_head + index % query.heads,
            ..*query
        };
        (one, start, TILE.min(keys.end.saturating_sub(start)))
    };
    for index in 0..keys.len().div_ceil(TILE) * query.heads {
        let head = index % query.heads;
        let (one, start, count) = unit(index);
        // SAFETY: the page table covers all positions before the last key.
        let mut tile = unsafe { K::open(pages, &one, start, count, &mut scratch.tile) };
        let (next, next_start, next_count) = unit(index + 1);
        if rows <= FETCH_ROWS && next_count > 0 {
            // SAFETY: as above.
            unsafe { tile.look_ahead(pages, &next, next_start, next_count) };
        }
        let end = (head + 1) * rows;
        // Rows of tokens before the tile see none of it.
        let mut row = head * rows + start.saturating_sub(query.position) * query.group;
        while row < end {
            // SAFETY: rows `row..row + count` exist, are this head's and see at least one key of
            // the tile.
            row +=
                unsafe { widest_block::<V, K>(&tile, query, head_dim, start, row..end, scratch) };
        }
    }
}
