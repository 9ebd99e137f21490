//! Quantisation of rows of activations, and how they lie in memory.
//!
//! Integer form: per group of 32 columns, symmetric 8-bit codes `round(x / scale)` with
//! `scale = max|x| / 127`, ties to even; then the numbers that products need of the group: its scale,
//! `scale × sum of codes`, minus that sum, and minus the sum of the first sixteen codes.
//!
//! Fine form: codes of `scale = max|x| / 32512` in two digits of base 255, each in -127..=127, so that
//! kernels take two 8-bit planes: per group the high digits, the low digits, then the numbers.
//!
//! Knows nothing of weights. The code here defines the bits; the kernels of an instruction set must give
//! the same.

use super::format::GROUP;
use crate::Isa;

/// Offset of a group's scale (f32) behind its codes.
pub(super) const SCALE: usize = 0;
/// Offset of `scale × sum` (f32) behind a group's codes.
pub(super) const SCALED_SUM: usize = 4;
/// Offset of minus the sum (i32) behind a group's codes.
pub(super) const MINUS_SUM: usize = 8;
/// Offset of minus the sum of the first half (i32) behind a group's codes.
pub(super) const MINUS_FIRST: usize = 12;
/// Base of the two digits of fine codes.
pub(super) const FINE_BASE: i32 = 255;
/// Groups whose largest magnitude is below this count as zero: far above where `steps / magnitude` is
/// infinite.
pub(super) const TINY: f32 = 1e-30;

/// Bytes of a group of one row.
pub(super) const fn group_bytes(planes: usize) -> usize {
    planes * GROUP + 16
}

/// Steps from zero to the largest magnitude.
pub(super) const fn steps(planes: usize) -> f32 {
    if planes == 1 { 127.0 } else { 32_512.0 }
}

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

/// Quantises one row.
///
/// # Safety
/// `row` has room for the form's `values.len() / GROUP` groups and is the caller's alone, and the
/// instruction set is available.
pub(super) unsafe fn quantize_row(isa: Isa, fine: bool, values: &[f32], row: *mut u8) {
    // SAFETY: by the contract.
    unsafe {
        match (isa, fine) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Bf16, false) => super::avx512::quantize_row::<1>(values, row),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Bf16, true) => super::avx512::quantize_row::<2>(values, row),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2 | Isa::Avx2Vnni, false) => super::avx2::quantize_row::<1>(values, row),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2 | Isa::Avx2Vnni, true) => super::avx2::quantize_row::<2>(values, row),
            (_, false) => portable_row::<1>(values, row),
            (_, true) => portable_row::<2>(values, row),
        }
    }
}

/// # Safety
/// As [`quantize_row`].
pub(super) unsafe fn portable_row<const PLANES: usize>(values: &[f32], row: *mut u8) {
    for (group, values) in values.chunks_exact(GROUP).enumerate() {
        let (codes, numbers) = quantize_group::<PLANES>(values);
        // SAFETY: inside this group's bytes; numbers are aligned, as groups are multiples of 16 bytes
        // from an aligned start.
        unsafe {
            let target = row.add(group * group_bytes(PLANES));
            target.cast::<[[i8; GROUP]; PLANES]>().write(codes);
            target.add(PLANES * GROUP).cast::<Numbers>().write(numbers);
        }
    }
}

/// Codes and numbers of one group.
fn quantize_group<const PLANES: usize>(values: &[f32]) -> ([[i8; GROUP]; PLANES], Numbers) {
    // As integers, magnitudes order like floats, with infinities and NaN above everything finite.
    let largest = values
        .iter()
        .fold(0, |largest, x| (x.to_bits() & 0x7fff_ffff).max(largest));
    let largest = f32::from_bits(largest);
    let mut codes = [[0; GROUP]; PLANES];
    if !largest.is_finite() {
        return (codes, Numbers::new(f32::NAN, 0, 0));
    }
    if largest < TINY {
        return (codes, Numbers::new(0.0, 0, 0));
    }
    let inverse = steps(PLANES) / largest;
    let mut sums = [0, 0];
    for (at, value) in values.iter().enumerate() {
        let code = (value * inverse).round_ties_even();
        sums[at / (GROUP / 2)] += code as i32;
        if PLANES == 1 {
            codes[0][at] = code as i8;
        } else {
            let [high, low] = digits(code);
            codes[0][at] = high as i8;
            codes[PLANES - 1][at] = low as i8;
        }
    }
    let numbers = Numbers::new(largest / steps(PLANES), sums[0] + sums[1], sums[0]);
    (codes, numbers)
}

/// The high and the low digit of an integer of at most 32,512. No quotient is near a tie (255 is odd), so
/// the rounding of the reciprocal never shows.
fn digits(code: f32) -> [i32; 2] {
    let high = (code * (1.0 / FINE_BASE as f32)).round_ties_even() as i32;
    [high, code as i32 - FINE_BASE * high]
}
