//! Quantisation of activations.

use std::arch::x86_64::*;

use super::super::format::GROUP;
use super::super::quantize::{FINE_BASE, Numbers, TINY, group_bytes, steps};

/// Ties go to the even code.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Quantises one row.
///
/// # Safety
/// AVX2; the rest as `quantize::quantize_row`.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn quantize_row<const PLANES: usize>(values: &[f32], row: *mut u8) {
    for (group, values) in values.chunks_exact(GROUP).enumerate() {
        // SAFETY: 32 values; inside the bytes of this group.
        unsafe {
            let target = row.add(group * group_bytes(PLANES));
            let numbers = quantize_group::<PLANES>(values.as_ptr(), target);
            target.add(PLANES * GROUP).cast::<Numbers>().write(numbers);
        }
    }
}

/// As the portable one, with the same bits: writes the codes, returns the numbers.
///
/// # Safety
/// AVX2; 32 readable values, `target` has room for the codes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn quantize_group<const PLANES: usize>(values: *const f32, target: *mut u8) -> Numbers {
    // SAFETY: by the contract; unaligned loads.
    let x = unsafe {
        [
            _mm256_loadu_ps(values),
            _mm256_loadu_ps(values.add(8)),
            _mm256_loadu_ps(values.add(16)),
            _mm256_loadu_ps(values.add(24)),
        ]
    };
    let largest = f32::from_bits(largest_magnitude(x));
    if !largest.is_finite() || largest < TINY {
        // SAFETY: the codes' bytes.
        unsafe { target.write_bytes(0, PLANES * GROUP) };
        let scale = if largest < TINY { 0.0 } else { f32::NAN };
        return Numbers::new(scale, 0, 0);
    }
    let inverse = _mm256_set1_ps(steps(PLANES) / largest);
    let mut codes = [_mm256_setzero_si256(); 4];
    let mut low = codes;
    for ((codes, low), x) in codes.iter_mut().zip(&mut low).zip(x) {
        let rounded = _mm256_round_ps::<NEAREST>(_mm256_mul_ps(x, inverse));
        *codes = _mm256_cvtps_epi32(rounded);
        if PLANES == 2 {
            let reciprocal = _mm256_set1_ps(1.0 / FINE_BASE as f32);
            let high = _mm256_round_ps::<NEAREST>(_mm256_mul_ps(rounded, reciprocal));
            let high = _mm256_cvtps_epi32(high);
            let base = _mm256_set1_epi32(FINE_BASE);
            *low = _mm256_sub_epi32(*codes, _mm256_mullo_epi32(high, base));
            *codes = high;
        }
    }
    // SAFETY: a plane's codes.
    let mut sums = unsafe { put_plane(codes, target) };
    if PLANES == 2 {
        // SAFETY: as above.
        let low = unsafe { put_plane(low, target.add(GROUP)) };
        sums = [FINE_BASE * sums[0] + low[0], FINE_BASE * sums[1] + low[1]];
    }
    Numbers::new(largest / steps(PLANES), sums[0] + sums[1], sums[0])
}

/// The bits of the largest magnitude.
#[target_feature(enable = "avx2")]
#[inline]
fn largest_magnitude(x: [__m256; 4]) -> u32 {
    let mut largest = _mm256_setzero_si256();
    for x in x {
        let magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fff_ffff));
        largest = _mm256_max_epi32(largest, magnitude);
    }
    let largest = _mm_max_epi32(
        _mm256_castsi256_si128(largest),
        _mm256_extracti128_si256::<1>(largest),
    );
    let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
    let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
    _mm_cvtsi128_si32(largest) as u32
}

/// Writes the codes of a plane; returns the sums of its halves.
///
/// # Safety
/// AVX2; 32 writable bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn put_plane([a, b, c, d]: [__m256i; 4], target: *mut u8) -> [i32; 2] {
    // Packing works within 128-bit lanes: quads come as 0 2 4 6 | 1 3 5 7 and are put in order.
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let codes = _mm256_permutevar8x32_epi32(packed, order);
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    // Sums of quads, then of each 128-bit lane: a half group.
    let pairs = _mm256_add_epi32(quads, _mm256_shuffle_epi32::<0b01_00_11_10>(quads));
    let sums = _mm256_add_epi32(pairs, _mm256_shuffle_epi32::<0b10_11_00_01>(pairs));
    // SAFETY: by the contract.
    unsafe { _mm256_storeu_si256(target.cast(), codes) };
    [
        _mm256_extract_epi32::<0>(sums),
        _mm256_extract_epi32::<4>(sums),
    ]
}
