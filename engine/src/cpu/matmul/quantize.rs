//! Quantisation of rows of activations, and how their tiles lie in memory.
//!
//! Integer form: per group of 32 columns, symmetric 8-bit codes `round(x / scale)` with
//! `scale = max|x| / 127`, ties to even. Rows lie in tiles of six, so that a kernel reaches six rows
//! from one pointer: per group a block with the codes of the six rows, then their scales,
//! `scale × sum of codes` and the sums of the first and the last sixteen codes.
//!
//! Fine form: codes of `scale = max|x| / 32512` in two digits of base 255, each in -127..=127, so that
//! kernels take two 8-bit planes: per group a block of the high digits, whose scales are the group's,
//! and a block of the low digits.
//!
//! Knows nothing of weights. The code here defines the bits; the kernels of an instruction set must give
//! the same.

use super::format::GROUP;
use crate::Isa;

/// Rows of a tile: with two panels of weights, what the 32 vector registers of AVX-512 hold.
pub(super) const TILE_ROWS: usize = 6;
/// Bytes of one group of a tile.
pub(super) const BLOCK_BYTES: usize = TILE_ROWS * (GROUP + 12);
/// Offset of the six scales (f32) in a block.
pub(super) const SCALES: usize = TILE_ROWS * GROUP;
/// Offset of the six `scale × sum` (f32).
pub(super) const SCALED_SUMS: usize = SCALES + TILE_ROWS * 4;
/// Offset of the six pairs of sums (2 × i16).
pub(super) const SUMS: usize = SCALED_SUMS + TILE_ROWS * 4;
/// Base of the two digits of fine codes.
pub(super) const FINE_BASE: i32 = 255;
/// Groups whose largest magnitude is below this count as zero: far above where `steps / magnitude` is
/// infinite.
pub(super) const TINY: f32 = 1e-30;

/// One quantised group of one row; the second plane is the fine form's low digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantized<const PLANES: usize> {
    pub(super) codes: [[i8; GROUP]; PLANES],
    /// Sums of the first and the last sixteen codes.
    pub(super) halves: [[i16; 2]; PLANES],
    pub(super) scale: f32,
}

impl<const PLANES: usize> Quantized<PLANES> {
    /// Steps from zero to the largest magnitude.
    pub(super) const STEPS: f32 = if PLANES == 1 { 127.0 } else { 32_512.0 };

    /// A group without codes.
    pub(super) fn empty(scale: f32) -> Self {
        Self {
            codes: [[0; GROUP]; PLANES],
            halves: [[0; 2]; PLANES],
            scale,
        }
    }
}

/// Quantises one row into lane `lane` of the tile at `tile`.
///
/// # Safety
/// `tile` has room for the form's `values.len() / GROUP` blocks, this lane is the caller's alone, and
/// the instruction set is available.
pub(super) unsafe fn quantize_row(
    isa: Isa,
    fine: bool,
    values: &[f32],
    tile: *mut u8,
    lane: usize,
) {
    // SAFETY: by the contract.
    unsafe {
        match (isa, fine) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Bf16, false) => {
                super::avx512::quantize_row::<1>(values, tile, lane);
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Bf16, true) => {
                super::avx512::quantize_row::<2>(values, tile, lane);
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, false) => super::avx2::quantize_row::<1>(values, tile, lane),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, true) => super::avx2::quantize_row::<2>(values, tile, lane),
            (_, false) => portable_row::<1>(values, tile, lane),
            (_, true) => portable_row::<2>(values, tile, lane),
        }
    }
}

/// # Safety
/// As [`quantize_row`].
unsafe fn portable_row<const PLANES: usize>(values: &[f32], tile: *mut u8, lane: usize) {
    for (group, values) in values.chunks_exact(GROUP).enumerate() {
        // SAFETY: inside the blocks of this group.
        unsafe {
            let block = tile.add(group * BLOCK_BYTES * PLANES);
            store(block, lane, &quantize_group::<PLANES>(values));
        }
    }
}

/// Writes one row's part of a group's blocks.
///
/// # Safety
/// `block` has `PLANES` blocks, of which this lane's bytes are the caller's alone.
#[inline]
pub(super) unsafe fn store<const PLANES: usize>(
    block: *mut u8,
    lane: usize,
    group: &Quantized<PLANES>,
) {
    let mut sum = 0;
    for (plane, (codes, halves)) in group.codes.iter().zip(group.halves).enumerate() {
        sum = sum * FINE_BASE + i32::from(halves[0]) + i32::from(halves[1]);
        // SAFETY: all offsets are below `BLOCK_BYTES`; four-byte values are aligned, as blocks are
        // multiples of 8 bytes from an aligned start.
        unsafe {
            let block = block.add(plane * BLOCK_BYTES);
            block.add(lane * GROUP).cast::<[i8; GROUP]>().write(*codes);
            block.add(SUMS + lane * 4).cast::<[i16; 2]>().write(halves);
        }
    }
    // SAFETY: as above.
    unsafe {
        block
            .add(SCALES + lane * 4)
            .cast::<f32>()
            .write(group.scale);
        block
            .add(SCALED_SUMS + lane * 4)
            .cast::<f32>()
            .write(group.scale * sum as f32);
    }
}

/// Codes, scale and sums of one group.
fn quantize_group<const PLANES: usize>(values: &[f32]) -> Quantized<PLANES> {
    // As integers, magnitudes order like floats, with infinities and NaN above everything finite.
    let largest = values
        .iter()
        .fold(0, |largest, x| (x.to_bits() & 0x7fff_ffff).max(largest));
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return Quantized::empty(f32::NAN);
    }
    if largest < TINY {
        return Quantized::empty(0.0);
    }
    let steps = Quantized::<PLANES>::STEPS;
    let mut group = Quantized::<PLANES>::empty(largest / steps);
    let inverse = steps / largest;
    for (at, value) in values.iter().enumerate() {
        let code = (value * inverse).round_ties_even();
        let digits = if PLANES == 1 {
            [code as i32, 0]
        } else {
            digits(code)
        };
        for (plane, digit) in digits.into_iter().enumerate().take(PLANES) {
            group.codes[plane][at] = digit as i8;
            group.halves[plane][at / 16] += digit as i16;
        }
    }
    group
}

/// The high and the low digit of an integer of at most 32,512. No quotient is near a tie (255 is odd), so
/// the rounding of the reciprocal never shows.
fn digits(code: f32) -> [i32; 2] {
    let high = (code * (1.0 / FINE_BASE as f32)).round_ties_even() as i32;
    [high, code as i32 - FINE_BASE * high]
}
