//! Attention over 8-bit codes, without widening them.
//!
//! A row's query becomes integers of two digits of base 128 with one scale, and so do its weights over
//! a tile, each first multiplied by the scale of its V. Codes times high digits are added as integers,
//! the sums multiplied by 128, and codes times low digits added; what comes out, exact until then, is
//! rounded to f32 and scaled. It must not know which rows and tiles meet.

use super::{
    BLOCK, Query, Scratch, TILE, VECTORS,
    block::Kernel,
    rows::soften,
    span::{part_values, state},
    tile::{TileMemory, fetch_line},
};
use crate::cpu::{
    lanes::{LANES, Lanes},
    pages::{Element, KeyCode, Pages, ValueCode},
};

/// Rows of queries that are fetched ahead: rounding one takes about as long as memory does.
const QUERIES_AHEAD: usize = 4;
/// Rows of a matrix that are interleaved.
const QUAD: usize = 4;
/// Largest integer of two digits, the higher at most 127.
const STEPS: f32 = 127.0 * 128.0;
/// Adding it rounds to an integer, whose digits the lowest bits then hold.
const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
/// Rows whose largest magnitude is below this count as zero, so that nothing becomes subnormal.
const TINY: f32 = f32::from_bits((127 - 100) << 23);

/// Rows of a query as digits.
pub(super) struct QueryCodes {
    /// High, then low digits of all rows: quads of dimensions by `rows`.
    digits: Vec<[i8; QUAD]>,
    /// Rows of the query.
    rows: usize,
    /// Per row, the value of 1.
    steps: Vec<f32>,
    /// Per row, the sums of the high and of the low digits.
    sums: Vec<[i32; 2]>,
}

impl QueryCodes {
    pub(super) fn new(rows: usize, head_dim: usize) -> Self {
        Self {
            digits: vec![[0; QUAD]; rows * 2 * head_dim.div_ceil(QUAD)],
            rows: 0,
            steps: vec![0.0; rows],
            sums: vec![[0; 2]; rows],
        }
    }
}

/// Working memory for tiles of codes.
pub(super) struct CodeMemory {
    /// Where keys are put that cannot be read in place: quads of dimensions by [`TILE`].
    keys: Vec<u8>,
    /// The same of values: quads of keys by `width` dimensions.
    values: Vec<u8>,
    /// Scales of the keys, then of the values.
    scales: [[f32; TILE]; 2],
    /// Digits of the weights of a kernel's rows: high, then low.
    weights: [[[i8; TILE]; 2]; BLOCK],
    /// Value of 1 of each row's weights.
    steps: [f32; LANES],
    /// `head_dim` in whole vectors.
    width: usize,
}

impl CodeMemory {
    pub(super) fn new(head_dim: usize) -> Self {
        let width = head_dim.next_multiple_of(LANES);
        Self {
            keys: vec![0; width * TILE],
            values: vec![0; width * TILE],
            scales: [[0.0; TILE]; 2],
            weights: [[[0; TILE]; 2]; BLOCK],
            steps: [0.0; LANES],
            width,
        }
    }
}

/// Codes of one tile and where its scales are.
pub(super) struct Codes {
    /// First quad of dimensions of each 16 keys, and bytes from one quad to the next.
    keys: [*const u8; VECTORS],
    key_stride: usize,
    /// First quad of each 16 keys, and bytes from one quad of keys to the next.
    values: [*const u8; VECTORS],
    value_stride: usize,
    /// Of the keys, [`TILE`] values, and of the values.
    scales: [*const f32; 2],
}

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
    unsafe fn fetch(pages: &Pages, query: &Query<'_>, start: usize, count: usize) {
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
        scratch.query_codes.rows = query.tokens * query.group;
        for row in 0..scratch.query_codes.rows {
            let place =
                |row: usize| row / query.group * query.stride + row % query.group * head_dim;
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
            *seen = TILE.min(query.position + (row + r) / query.group + 1 - start);
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

impl Codes {
    /// Where the tile's codes and, 16 by 16, its scales are, if they can be read in place.
    ///
    /// # Safety
    /// The page table covers the tile.
    #[inline(always)]
    unsafe fn locate(
        pages: &Pages,
        query: &Query<'_>,
        start: usize,
        count: usize,
    ) -> (Self, [[*const f32; 2]; VECTORS]) {
        let (page_size, head_dim) = (
            pages.layout().page_size as usize,
            pages.layout().head_dim as usize,
        );
        let mut tile = Self {
            keys: [std::ptr::null(); VECTORS],
            key_stride: QUAD * page_size,
            values: [std::ptr::null(); VECTORS],
            value_stride: QUAD * head_dim,
            scales: [std::ptr::null(); 2],
        };
        let mut scales = [[std::ptr::null(); 2]; VECTORS];
        for vector in 0..count.div_ceil(LANES) {
            let position = start + vector * LANES;
            let slot = position % page_size;
            let page = query.pages[position / page_size];
            let (keys, values) = pages.head(query.layer, page, query.kv_head);
            // SAFETY: 16 slots from `slot` on are inside the page, as both are multiples of 16.
            unsafe {
                tile.keys[vector] = keys.add(QUAD * slot);
                tile.values[vector] = values.add(slot * head_dim);
                for (scales, head) in scales[vector].iter_mut().zip([keys, values]) {
                    *scales = head.add(page_size * head_dim).cast::<f32>().add(slot);
                }
            }
        }
        (tile, scales)
    }

    /// The tile that [`gather`] put there.
    #[inline(always)]
    fn gathered(memory: &CodeMemory) -> Self {
        let mut tile = Self {
            keys: [std::ptr::null(); VECTORS],
            key_stride: QUAD * TILE,
            values: [std::ptr::null(); VECTORS],
            value_stride: QUAD * memory.width,
            scales: [memory.scales[0].as_ptr(), memory.scales[1].as_ptr()],
        };
        for vector in 0..VECTORS {
            tile.keys[vector] = memory.keys[vector * QUAD * LANES..].as_ptr();
            tile.values[vector] = memory.values[vector * LANES * memory.width..].as_ptr();
        }
        tile
    }

    /// Scores of `R` rows from `row` on against the tile's first `vectors` vectors of keys.
    ///
    /// # Safety
    /// `scores` points to `R` rows of [`TILE`].
    #[inline(always)]
    unsafe fn score<V: Lanes, const R: usize>(
        &self,
        queries: &QueryCodes,
        row: usize,
        head_dim: usize,
        vectors: usize,
        scores: *mut f32,
    ) {
        // SAFETY: `vector + C <= vectors` in each call.
        unsafe {
            let mut vector = 0;
            if V::WIDE && vectors == VECTORS {
                return self.score_vectors::<V, R, VECTORS>(queries, row, head_dim, 0, scores);
            }
            while vector + 2 <= vectors {
                self.score_vectors::<V, R, 2>(queries, row, head_dim, vector, scores);
                vector += 2;
            }
            if vector < vectors {
                self.score_vectors::<V, R, 1>(queries, row, head_dim, vector, scores);
            }
        }
    }

    /// # Safety
    /// As [`Self::score`], for vectors `vector..vector + C`.
    #[inline(always)]
    unsafe fn score_vectors<V: Lanes, const R: usize, const C: usize>(
        &self,
        queries: &QueryCodes,
        row: usize,
        head_dim: usize,
        vector: usize,
        scores: *mut f32,
    ) {
        let (rows, quads) = (queries.rows, head_dim.div_ceil(QUAD));
        assert!(row + R <= rows && 2 * quads * rows <= queries.digits.len());
        let mut digits = queries.digits[row..].as_ptr().cast::<i8>();
        let mut sums = [[V::splat_sum(0); C]; R];
        for r in 0..R {
            // What the products will count too much, over 128: high digits are multiplied by it later.
            let [high, low] = queries.sums[row + r];
            sums[r] = [V::splat_sum(-V::BIAS * high - V::BIAS / 128 * low); C];
        }
        for digit in 0..2 {
            for quad in 0..quads {
                // SAFETY: the vectors and the quad exist, and digits of it for all rows.
                unsafe {
                    let first = V::load_quads(self.keys[vector].add(quad * self.key_stride));
                    let mut keys = [first; C];
                    for (c, keys) in keys.iter_mut().enumerate().skip(1) {
                        *keys = V::load_quads(self.keys[vector + c].add(quad * self.key_stride));
                    }
                    for r in 0..R {
                        let x = V::splat_quad(digits.add(r * QUAD));
                        for c in 0..C {
                            sums[r][c] = V::dot_offset(sums[r][c], keys[c], x);
                        }
                    }
                    digits = digits.add(rows * QUAD);
                }
            }
            if digit == 0 {
                for row in &mut sums {
                    for sum in row {
                        *sum = V::next_digit(*sum);
                    }
                }
            }
        }
        for r in 0..R {
            let step = V::splat(queries.steps[row + r]);
            for c in 0..C {
                let at = (vector + c) * LANES;
                // SAFETY: row `r` of the scores; the tile's scales.
                unsafe {
                    let scale = V::load(self.scales[0].add(at)).mul(step);
                    V::widen(sums[r][c])
                        .mul(scale)
                        .store(scores.add(r * TILE + at));
                }
            }
        }
    }

    /// `sums += weights * values` for `R` rows and `D` vectors of dimensions from vector `column` on,
    /// over the first `quads` quads of keys.
    ///
    /// # Safety
    /// `sums` points to the first column of `R` rows, `stride` values apart.
    #[inline(always)]
    unsafe fn gather_values<V: Lanes, const R: usize, const D: usize>(
        &self,
        memory: &CodeMemory,
        quads: usize,
        sums: *mut f32,
        stride: usize,
        column: usize,
    ) {
        const QUADS: usize = LANES / QUAD;
        let mut acc = [[V::splat_sum(0); D]; R];
        for digit in 0..2 {
            for quad in 0..quads {
                // SAFETY: the tile has the quad's keys, or what belongs to keys that no row sees and
                // whose weights are 0.
                unsafe {
                    let row = self.values[quad / QUADS].add(quad % QUADS * self.value_stride);
                    let row = row.add(column * QUAD * LANES);
                    let mut values = [V::load_quads(row); D];
                    for (d, values) in values.iter_mut().enumerate().skip(1) {
                        *values = V::load_quads(row.add(d * QUAD * LANES));
                    }
                    // The order of `CodeLanes::store_quads`.
                    let at = quad % QUADS * LANES + quad / QUADS * QUAD;
                    for r in 0..R {
                        let x = V::splat_quad(memory.weights[r][digit].as_ptr().add(at));
                        for d in 0..D {
                            acc[r][d] = V::dot(acc[r][d], values[d], x);
                        }
                    }
                }
            }
            if digit == 0 {
                for row in &mut acc {
                    for sum in row {
                        *sum = V::next_digit(*sum);
                    }
                }
            }
        }
        for r in 0..R {
            let step = V::splat(memory.steps[r]);
            for d in 0..D {
                // SAFETY: the caller's promise.
                unsafe {
                    let sums = sums.add(r * stride + d * LANES);
                    V::widen(acc[r][d]).fma(step, V::load(sums)).store(sums);
                }
            }
        }
    }
}

/// Whether every 16 keys and 16 dimensions are whole lines of a page.
#[inline(always)]
fn reads_in_place(pages: &Pages) -> bool {
    let layout = pages.layout();
    layout.head_dim.is_multiple_of(LANES as u32) && layout.page_size.is_multiple_of(LANES as u32)
}

/// Value of 1 and its inverse of rows by their largest magnitudes. Where these are not numbers neither
/// is a result.
#[inline(always)]
fn steps_of<V: Lanes>(largest: V) -> (V, V) {
    let (zero, tiny) = (V::splat(0.0), V::splat(TINY));
    let steps = largest.mul(V::splat(1.0 / STEPS));
    let inverses = V::splat(STEPS).div(largest);
    (
        zero.where_less(largest, tiny, steps),
        zero.where_less(largest, tiny, inverses),
    )
}

/// Rounds a row of a query, `head_dim` values at `from`, times log2(e).
///
/// # Safety
/// As many values, and [`LANES`] more, may be read; the row exists.
#[inline(always)]
unsafe fn round_query<V: Lanes>(
    from: *const f32,
    head_dim: usize,
    row: usize,
    codes: &mut QueryCodes,
) {
    let zero = V::splat(0.0);
    let factor = V::splat(std::f32::consts::LOG2_E);
    let (mut largest, mut finite) = (zero, zero);
    for column in (0..head_dim).step_by(LANES) {
        // SAFETY: the caller's promise.
        let values = unsafe { V::load(from.add(column)) };
        let values = values.first(head_dim - column, zero).mul(factor);
        largest = values.max(zero.sub(values)).max(largest);
        // 0, or not-a-number.
        finite = values.fma(zero, finite);
    }
    let largest = if finite.any_nan() {
        f32::NAN
    } else {
        largest.largest()
    };
    let (step, inverse) = steps_of(V::splat(largest));
    codes.steps[row] = step.largest();
    codes.sums[row] = [0; 2];
    let (rows, quads) = (codes.rows, head_dim.div_ceil(QUAD));
    let mut digits = [[0; LANES]; 2];
    for column in (0..head_dim).step_by(LANES) {
        // SAFETY: as above; 16 places each.
        unsafe {
            let values = V::load(from.add(column));
            let values = values.first(head_dim - column, zero).mul(factor);
            let shifted = values.fma(inverse, V::splat(SHIFT));
            let [high, low] = &mut digits;
            shifted.store_digits(high.as_mut_ptr(), low.as_mut_ptr());
        }
        for (digit, digits) in digits.iter().enumerate() {
            let sum = &mut codes.sums[row][digit];
            let first = digit * quads + column / QUAD;
            let last = quads * (digit + 1);
            for (quad, digits) in (first..last).zip(digits.as_chunks::<QUAD>().0) {
                codes.digits[quad * rows + row] = *digits;
                *sum += digits.iter().map(|digit| i32::from(*digit)).sum::<i32>();
            }
        }
    }
}

/// A row's weights times the scales of their values, into `scaled`; keys from `seen` on get 0. Returns
/// the largest, or not-a-number if any is none.
///
/// # Safety
/// `scales` and `scaled` point to [`TILE`] values.
#[inline(always)]
unsafe fn scale_weights<V: Lanes>(
    mut weights: [V; VECTORS],
    scales: *const f32,
    seen: usize,
    scaled: *mut f32,
) -> f32 {
    for (v, weight) in weights.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            *weight = weight.mul(V::load(scales.add(v * LANES)));
            if seen < TILE {
                // Scales of keys that are not there may be anything.
                *weight = weight.first(seen.saturating_sub(v * LANES), V::splat(0.0));
            }
            weight.store(scaled.add(v * LANES));
        }
    }
    let [a, b, c, d] = weights;
    if a.add(b).add(c.add(d)).any_nan() {
        f32::NAN
    } else {
        a.max(b).max(c.max(d)).largest()
    }
}

/// Digits of a row's scaled weights.
///
/// # Safety
/// `scaled` points to [`TILE`] values.
#[inline(always)]
unsafe fn round_weights<V: Lanes>(scaled: *const f32, inverse: V, digits: &mut [[i8; TILE]; 2]) {
    let mut weights = [V::splat(SHIFT); VECTORS];
    let [high, low] = digits;
    // SAFETY: the caller's promise; 64 places each.
    unsafe {
        for (v, weight) in weights.iter_mut().enumerate() {
            *weight = V::load(scaled.add(v * LANES)).fma(inverse, *weight);
        }
        V::store_quads(weights, high.as_mut_ptr(), low.as_mut_ptr());
    }
}

/// Puts `count` keys and values from `start` on, and their scales, in order.
///
/// # Safety
/// As [`Kernel::open`].
unsafe fn gather(
    pages: &Pages,
    query: &Query<'_>,
    start: usize,
    count: usize,
    memory: &mut CodeMemory,
) {
    let (page_size, head_dim) = (
        pages.layout().page_size as usize,
        pages.layout().head_dim as usize,
    );
    let quads = head_dim.next_multiple_of(QUAD);
    for key in 0..count {
        let (page, slot) = ((start + key) / page_size, (start + key) % page_size);
        let (keys, values) = pages.head(query.layer, query.pages[page], query.kv_head);
        // SAFETY: `place` stays inside the head's matrices; the scales follow them.
        unsafe {
            for dimension in 0..head_dim {
                let from = KeyCode::place(dimension, slot, head_dim, page_size);
                memory.keys[KeyCode::place(dimension, key, quads, TILE)] = keys.add(from).read();
                let from = ValueCode::place(slot, dimension, page_size, head_dim);
                let to = ValueCode::place(key, dimension, TILE, memory.width);
                memory.values[to] = values.add(from).read();
            }
            for (scales, head) in memory.scales.iter_mut().zip([keys, values]) {
                let from = head.add(page_size * head_dim).cast::<f32>();
                scales[key] = from.add(slot).read_unaligned();
            }
        }
    }
}
