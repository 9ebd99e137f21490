//! Quantisation of activations.

use std::arch::x86_64::*;

use super::super::activations::{BLOCK_BYTES, Quantized, TINY, store};
use super::super::format::GROUP;

/// Ties go to the even code.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Quantises one row into lane `lane` of the tile at `tile`.
///
/// # Safety
/// AVX2; the rest as `activations::quantize_row`.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn quantize_row(values: &[f32], tile: *mut u8, lane: usize) {
    for (group, values) in values.chunks_exact(GROUP).enumerate() {
        // SAFETY: 32 values; inside the block of this group.
        unsafe {
            let quantized = quantize_group(values.as_ptr());
            store(tile.add(group * BLOCK_BYTES), lane, &quantized);
        }
    }
}

/// As the portable one, with the same bits.
///
/// # Safety
/// AVX2; 32 readable values.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn quantize_group(values: *const f32) -> Quantized {
    // SAFETY: by the contract; unaligned loads.
    let x = unsafe { [0, 8, 16, 24].map(|at| _mm256_loadu_ps(values.add(at))) };
    let mask = _mm256_set1_epi32(0x7fff_ffff);
    let magnitudes = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), mask));
    let largest = _mm256_max_epi32(
        _mm256_max_epi32(magnitudes[0], magnitudes[1]),
        _mm256_max_epi32(magnitudes[2], magnitudes[3]),
    );
    let largest = _mm_max_epi32(
        _mm256_castsi256_si128(largest),
        _mm256_extracti128_si256::<1>(largest),
    );
    let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
    let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
    let largest = f32::from_bits(_mm_cvtsi128_si32(largest) as u32);
    let mut group = Quantized {
        codes: [0; GROUP],
        scale: 0.0,
        halves: [0; 2],
    };
    if !largest.is_finite() {
        group.scale = f32::NAN;
        return group;
    }
    if largest < TINY {
        return group;
    }
    let inverse = _mm256_set1_ps(127.0 / largest);
    let [a, b, c, d] =
        x.map(|x| _mm256_cvtps_epi32(_mm256_round_ps::<NEAREST>(_mm256_mul_ps(x, inverse))));
    // Packing works within 128-bit lanes: quads come as 0 2 4 6 | 1 3 5 7 and are put in order.
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let codes = _mm256_permutevar8x32_epi32(packed, order);
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
    let sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let mut quads = [0_i32; 8];
    // SAFETY: 32 bytes each.
    unsafe {
        _mm256_storeu_si256(group.codes.as_mut_ptr().cast(), codes);
        _mm256_storeu_si256(quads.as_mut_ptr().cast(), sums);
    }
    group.halves = [0, 4].map(|at| quads[at..at + 4].iter().sum::<i32>() as i16);
    group.scale = largest / 127.0;
    group
}
