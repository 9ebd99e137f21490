//! Quantisation of rows of activations, and how they lie in memory.
//!
//! Per group of 32 columns symmetric 8-bit codes `round(x / scale)` with `scale = max|x| / 127`, ties to
//! even, then the numbers that products need of the group: its scale, `scale × sum of codes`, minus that
//! sum, and minus the sum of the first sixteen codes.
//!
//! A group that stands out of its row, with a largest magnitude of at least [`STANDS_OUT`] times the
//! row's root mean square, would carry most of the row's error. It has a second digit: codes
//! `round((x - scale × code) / low)` with `low = scale / 254`, and numbers of its own, in a second area
//! of the row, and a mark. The scaled sum in the first area is that of both digits.
//!
//! Knows nothing of weights. The code here defines the bits; the kernels of an instruction set must give
//! the same.

use std::sync::atomic::{AtomicU64, Ordering};

use super::format::GROUP;
use crate::{
    Isa,
    cpu::lanes::{LANES, Lanes, lanes_kernel},
};

/// Offset of a group's scale (f32).
pub(super) const SCALE: usize = GROUP;
/// Offset of a group's `scale × sum` (f32).
pub(super) const SCALED_SUM: usize = GROUP + 4;
/// Offset of minus the sum of a group's codes (i32).
pub(super) const MINUS_SUM: usize = GROUP + 8;
/// Offset of minus the sum of the first half of a group's codes (i32).
pub(super) const MINUS_FIRST: usize = GROUP + 12;
/// Bytes of a group's codes and numbers.
pub(super) const GROUP_BYTES: usize = GROUP + 16;

/// Steps from zero to the largest magnitude of a group.
pub(super) const STEPS: f32 = 127.0;
/// Steps of the second digit in one of the first: from -127 to 127.
pub(super) const LOW_STEPS: f32 = 254.0;
/// Root mean squares of a row from which on a group has a second digit.
pub(super) const STANDS_OUT: f32 = 8.0;
/// Groups whose largest magnitude is below this count as zero: far above where `STEPS / magnitude` is
/// infinite.
pub(super) const TINY: f32 = 1e-30;

/// Rows that share the words of marks.
pub(super) const MARKED_ROWS: usize = u64::BITS as usize;

/// What follows a group's codes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) struct Numbers {
    pub(super) scale: f32,
    pub(super) scaled_sum: f32,
    pub(super) minus_sum: i32,
    pub(super) minus_first: i32,
}

impl Numbers {
    /// Of a group with these sums of codes.
    #[inline]
    pub(super) fn new(scale: f32, sum: i32, first: i32) -> Self {
        Self {
            scale,
            scaled_sum: scale * sum as f32,
            minus_sum: -sum,
            minus_first: -first,
        }
    }
}

/// Where a row goes.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    /// First digits of the first group.
    pub(super) row: *mut u8,
    /// Bytes from first to second digits.
    pub(super) low: usize,
    /// Marks of the row and its neighbours: a word for each group.
    pub(super) marks: &'a [AtomicU64],
    /// The row's bit in them.
    pub(super) bit: u64,
}

impl Target<'_> {
    /// From the given group on.
    ///
    /// # Safety
    /// The row has this group.
    pub(super) unsafe fn from(self, group: usize) -> Self {
        Self {
            // SAFETY: by the contract.
            row: unsafe { self.row.add(group * GROUP_BYTES) },
            marks: &self.marks[group..],
            ..self
        }
    }

    /// Writes whether a group has a second digit. Mostly it had before, too, and nothing is written.
    #[inline]
    pub(super) fn mark(self, group: usize, stands_out: bool) {
        let word = &self.marks[group];
        match (word.load(Ordering::Relaxed) & self.bit != 0, stands_out) {
            (false, true) => word.fetch_or(self.bit, Ordering::Relaxed),
            (true, false) => word.fetch_and(!self.bit, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Writes the second digit of a group of largest magnitude `largest`; returns its scaled sum.
    ///
    /// # Safety
    /// The row has this group.
    #[inline(always)]
    pub(super) unsafe fn put_low(self, group: usize, values: &[f32; GROUP], largest: f32) -> f32 {
        let (codes, numbers) = low_digits(values, largest);
        // SAFETY: inside the row, by the contract.
        unsafe { put(self.row.add(self.low + group * GROUP_BYTES), codes, numbers) };
        numbers.scaled_sum
    }
}

/// Writes a group.
///
/// # Safety
/// `target` is an aligned group of a row.
#[inline(always)]
unsafe fn put(target: *mut u8, codes: [i8; GROUP], numbers: Numbers) {
    // SAFETY: by the contract; numbers are aligned, as groups are multiples of 16 bytes from an aligned
    // start.
    unsafe {
        target.cast::<[i8; GROUP]>().write(codes);
        target.add(SCALE).cast::<Numbers>().write(numbers);
    }
}

/// Quantises one row.
///
/// # Safety
/// `target` has room for the row's `values.len() / GROUP` groups, and but for other rows' marks is the
/// caller's alone; the instruction set is available.
pub(super) unsafe fn quantize_row(isa: Isa, values: &[f32], target: Target<'_>) {
    // SAFETY: whole groups of values.
    let squares = unsafe { sum_of_squares(isa, values.as_ptr(), values.len() / GROUP) };
    let limit = squares * (STANDS_OUT * STANDS_OUT / values.len() as f32);
    // SAFETY: by the contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => super::avx512::quantize_row(values, limit, target),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx2Vnni => super::avx2::quantize_row(values, limit, target),
            _ => portable_row(values, limit, target),
        }
    }
}

lanes_kernel! {
    unsafe fn sum_of_squares(values: *const f32, groups: usize) -> f32 = sum_of_squares_body
}

#[inline(always)]
unsafe fn sum_of_squares_body<V: Lanes>(values: *const f32, groups: usize) -> f32 {
    const { assert!(GROUP == 2 * LANES) };
    let mut sums = [V::splat(0.0); 2];
    for group in 0..groups {
        // SAFETY: a group's values.
        unsafe {
            let first = V::load(values.add(group * GROUP));
            let second = V::load(values.add(group * GROUP + LANES));
            sums[0] = first.fma(first, sums[0]);
            sums[1] = second.fma(second, sums[1]);
        }
    }
    sums[0].add(sums[1]).sum()
}

/// A row, or a part of one, in which groups whose squared magnitude reaches `limit` stand out.
///
/// # Safety
/// As [`quantize_row`].
pub(super) unsafe fn portable_row(values: &[f32], limit: f32, target: Target<'_>) {
    for (group, values) in values.as_chunks::<GROUP>().0.iter().enumerate() {
        // As integers, magnitudes order like floats, with infinities and NaN above everything finite.
        let largest = values
            .iter()
            .fold(0, |largest, x| (x.to_bits() & 0x7fff_ffff).max(largest));
        let largest = f32::from_bits(largest);
        let stands_out = largest.is_finite() && largest >= TINY && largest * largest >= limit;
        let (codes, mut numbers) = high_digits(values, largest);
        if stands_out {
            // SAFETY: a group of the row.
            numbers.scaled_sum += unsafe { target.put_low(group, values, largest) };
        }
        target.mark(group, stands_out);
        // SAFETY: a group of the row.
        unsafe { put(target.row.add(group * GROUP_BYTES), codes, numbers) };
    }
}

/// First digits of a group of largest magnitude `largest`.
fn high_digits(values: &[f32; GROUP], largest: f32) -> ([i8; GROUP], Numbers) {
    let mut codes = [0; GROUP];
    if !largest.is_finite() {
        return (codes, Numbers::new(f32::NAN, 0, 0));
    }
    if largest < TINY {
        return (codes, Numbers::new(0.0, 0, 0));
    }
    let inverse = STEPS / largest;
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (value * inverse).round_ties_even() as i8;
    }
    (codes, numbers(largest / STEPS, &codes))
}

/// Second digits of a group of largest magnitude `largest`.
#[inline(always)]
fn low_digits(values: &[f32; GROUP], largest: f32) -> ([i8; GROUP], Numbers) {
    let (scale, inverse) = (largest / STEPS, STEPS / largest);
    let finer = inverse * LOW_STEPS;
    let mut codes = [0; GROUP];
    for (code, value) in codes.iter_mut().zip(values) {
        let high = (value * inverse).round_ties_even();
        let rest = (-scale).mul_add(high, *value);
        *code = (rest * finer).round_ties_even() as i8;
    }
    (codes, numbers(scale / LOW_STEPS, &codes))
}

#[inline(always)]
fn numbers(scale: f32, codes: &[i8; GROUP]) -> Numbers {
    let (first, second) = codes.split_at(GROUP / 2);
    let sum = |codes: &[i8]| codes.iter().fold(0, |sum, code| sum + i32::from(*code));
    Numbers::new(scale, sum(first) + sum(second), sum(first))
}
