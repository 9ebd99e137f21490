//! Queries and weights as integers of two digits of base 128.
//!
//! It must not know where codes are or what the digits are multiplied by.

use super::QUAD;
use crate::cpu::{
    attention::{TILE, VECTORS},
    lanes::{LANES, Lanes},
};

/// Largest integer of two digits, the higher at most 127.
const STEPS: f32 = 127.0 * 128.0;
/// Adding it rounds to an integer, whose digits the lowest bits then hold.
const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
/// Rows whose largest magnitude is below this count as zero, so that nothing becomes subnormal.
const TINY: f32 = f32::from_bits((127 - 100) << 23);

/// Rows of a query as digits.
pub(in crate::cpu::attention) struct QueryCodes {
    /// High, then low digits of all rows: quads of dimensions by `rows`.
    pub(super) digits: Vec<[i8; QUAD]>,
    /// Rows of the query.
    pub(super) rows: usize,
    /// Per row, the value of 1.
    pub(super) steps: Vec<f32>,
    /// Per row, the sums of the high and of the low digits.
    pub(super) sums: Vec<[i32; 2]>,
}

impl QueryCodes {
    pub(in crate::cpu::attention) fn new(rows: usize, head_dim: usize) -> Self {
        Self {
            digits: vec![[0; QUAD]; rows * 2 * head_dim.div_ceil(QUAD)],
            rows: 0,
            steps: vec![0.0; rows],
            sums: vec![[0; 2]; rows],
        }
    }
}

/// Value of 1 and its inverse of rows by their largest magnitudes. Where these are not numbers neither
/// is a result.
#[inline(always)]
pub(super) fn steps_of<V: Lanes>(largest: V) -> (V, V) {
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
pub(super) unsafe fn round_query<V: Lanes>(
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
pub(super) unsafe fn scale_weights<V: Lanes>(
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
pub(super) unsafe fn round_weights<V: Lanes>(
    scaled: *const f32,
    inverse: V,
    digits: &mut [[i8; TILE]; 2],
) {
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
