//! Attention over 8-bit codes, without widening them.
//!
//! A row's query becomes integers of two digits of base 128 with one scale, and so do its weights over
//! a tile, each first multiplied by the scale of its V. Codes times high digits are added as integers,
//! the sums multiplied by 128, and codes times low digits added; what comes out, exact until then, is
//! rounded to f32 and scaled. It must not know which rows and tiles meet.

mod digits;
mod place;
mod products;

pub(super) use self::{
    digits::QueryCodes,
    place::{CodeMemory, Codes},
};
use self::{
    digits::{round_query, round_weights, scale_weights, steps_of},
    place::{gather, reads_in_place},
};
use super::{
    Query, Scratch, TILE,
    block::Kernel,
    rows::soften,
    span::{part_values, state},
    tile::{TileMemory, fetch_line},
};
use crate::cpu::{
    lanes::{LANES, Lanes},
    pages::Pages,
};

/// Rows of queries that are fetched ahead: rounding one takes about as long as memory does.
const QUERIES_AHEAD: usize = 4;
/// Rows of a matrix that are interleaved.
const QUAD: usize = 4;

impl Kernel for Codes {
    const MANY_ROWS: bool = true;
    #[inline(always)]
    unsafe fn open(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
        memory: &mut TileMemory,
    ) -> Self {
        let memory = &mut memory.codes;
        // SAFETY: the caller's promise.
        unsafe {
            if reads_in_place(pages) {
                let (tile, scales) = Self::locate(pages, query, start, count);
                for (vector, from) in scales[..count.div_ceil(LANES)].iter().enumerate() {
                    for (from, to) in from.iter().zip(&mut memory.scales) {
                        let to = to[vector * LANES..].as_mut_ptr();
                        to.copy_from_nonoverlapping(*from, LANES);
                    }
                }
                Self {
                    scales: [memory.scales[0].as_ptr(), memory.scales[1].as_ptr()],
                    ..tile
                }
            } else {
                gather(pages, query, start, count, memory);
                Self::gathered(memory)
            }
        }
    }
    #[inline(always)]
    unsafe fn look_ahead(&mut self, pages: &Pages, query: &Query<'_>, start: usize, count: usize) {
        if !reads_in_place(pages) {
            return;
        }
        let head_dim = pages.layout().head_dim as usize;
        // SAFETY: the caller's promise.
        let (tile, scales) = unsafe { Self::locate(pages, query, start, count) };
        for vector in 0..count.div_ceil(LANES) {
            // A quad of dimensions of 16 keys is one line, and so is one of keys by 16 dimensions.
            for quad in 0..head_dim / QUAD {
                fetch_line(tile.keys[vector].wrapping_add(quad * tile.key_stride));
                fetch_line(tile.values[vector].wrapping_add(quad * QUAD * LANES));
            }
            scales[vector].into_iter().for_each(fetch_line);
        }
    }
    #[inline(always)]
    unsafe fn round_queries<V: Lanes>(query: &Query<'_>, head_dim: usize, scratch: &mut Scratch) {
        scratch.query_codes.rows = query.rows();
        for row in 0..scratch.query_codes.rows {
            let place = |row: usize| query.place(row, head_dim, query.stride);
            // SAFETY: the caller's promise.
            unsafe {
                let from = query.queries.add(place(row));
                for column in (0..head_dim).step_by(LANES) {
                    fetch_line(
                        query
                            .queries
                            .wrapping_add(place(row + QUERIES_AHEAD) + column),
                    );
                }
                round_query::<V>(from, head_dim, row, &mut scratch.query_codes);
            }
        }
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
        let mut seen = [0; R];
        for (r, seen) in seen.iter_mut().enumerate() {
            *seen = TILE.min(query.position + query.token(row + r) + 1 - start);
        }
        let scores = scratch.scores.as_mut_ptr();
        let stride = part_values(head_dim);
        // SAFETY: the last row sees the most keys; the tile was opened for at least as many; scratch
        // has `R` rows of everything.
        unsafe {
            let vectors = seen[R - 1].div_ceil(LANES);
            self.score::<V, R>(&scratch.query_codes, row, head_dim, vectors, scores);
            let mut largest = [0.0; LANES];
            for r in 0..R {
                let mut state = state(scratch.parts.row(row + r), head_dim);
                let scores = scores.add(r * TILE);
                let weights = soften::<V>(scores, seen[r], &mut state);
                let [a, b, c, d] = weights;
                let total = a.add(b).add(c.add(d));
                V::load(state.totals).add(total).store(state.totals);
                largest[r] = scale_weights::<V>(weights, self.scales[1], seen[r], scores);
            }
            let memory = &mut scratch.tile.codes;
            let (steps, inverses) = steps_of(V::load(largest.as_ptr()));
            steps.store(memory.steps.as_mut_ptr());
            inverses.store(largest.as_mut_ptr());
            for r in 0..R {
                let inverse = V::splat(largest[r]);
                round_weights::<V>(scores.add(r * TILE), inverse, &mut memory.weights[r]);
            }
            let memory = &scratch.tile.codes;
            let quads = seen[R - 1].div_ceil(QUAD);
            let sums = scratch.parts.row(row);
            let columns = head_dim.div_ceil(LANES);
            let mut column = 0;
            while column < columns {
                let sums = sums.add(column * LANES);
                if V::WIDE && column + 4 <= columns {
                    self.gather_values::<V, R, 4>(memory, quads, sums, stride, column);
                    column += 4;
                } else if column + 2 <= columns {
                    self.gather_values::<V, R, 2>(memory, quads, sums, stride, column);
                    column += 2;
                } else {
                    self.gather_values::<V, R, 1>(memory, quads, sums, stride, column);
                    column += 1;
                }
            }
        }
    }
}
