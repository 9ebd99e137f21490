//! Codes times digits: scores of a tile's keys, and sums of its values.
//!
//! It must not know how digits come about.

use super::{CodeMemory, Codes, QUAD, QueryCodes};
use crate::cpu::{
    attention::{TILE, VECTORS},
    lanes::{LANES, Lanes},
};

impl Codes {
    /// Scores of `R` rows from `row` on against the tile's first `vectors` vectors of keys.
    ///
    /// # Safety
    /// `scores` points to `R` rows of [`TILE`].
    #[inline(always)]
    pub(super) unsafe fn score<V: Lanes, const R: usize>(
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
    pub(super) unsafe fn gather_values<V: Lanes, const R: usize, const D: usize>(
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
