//! Quantisation of activations.

use std::arch::x86_64::*;

use super::super::format::GROUP;
use super::super::quantize::{GROUP_BYTES, Numbers, SCALE, STEPS, TINY, Target};

/// Ties go to the even code.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Quantises one row.
///
/// # Safety
/// AVX2 with FMA; the rest as `quantize::portable_row`.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn quantize_row(values: &[f32], limit: f32, target: Target<'_>) {
    for (group, values) in values.as_chunks::<GROUP>().0.iter().enumerate() {
        // SAFETY: a group of the row.
        unsafe {
            let at = target.row.add(group * GROUP_BYTES);
            let (largest, mut numbers) = put_high(values, at);
            let stands_out = largest >= TINY && largest * largest >= limit;
            if stands_out {
                numbers.scaled_sum += target.put_low(group, values, largest);
            }
            target.mark(group, stands_out);
            at.add(SCALE).cast::<Numbers>().write(numbers);
        }
    }
}

/// Writes the codes of first digits; returns the largest magnitude (0 if it is not finite) and the numbers.
///
/// # Safety
/// AVX2; `target` has room for the codes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn put_high(values: &[f32; GROUP], target: *mut u8) -> (f32, Numbers) {
    let mut x = [_mm256_setzero_ps(); 4];
    for (x, values) in x.iter_mut().zip(values.as_chunks::<8>().0) {
        // SAFETY: eight values.
        *x = unsafe { _mm256_loadu_ps(values.as_ptr()) };
    }
    let largest = f32::from_bits(largest_magnitude(x));
    if !largest.is_finite() || largest < TINY {
        // SAFETY: the codes' bytes.
        unsafe { target.write_bytes(0, GROUP) };
        let scale = if largest < TINY { 0.0 } else { f32::NAN };
        return (0.0, Numbers::new(scale, 0, 0));
    }
    let inverse = _mm256_set1_ps(STEPS / largest);
    let mut codes = [_mm256_setzero_si256(); 4];
    for (codes, x) in codes.iter_mut().zip(x) {
        *codes = _mm256_cvtps_epi32(_mm256_round_ps::<NEAREST>(_mm256_mul_ps(x, inverse)));
    }
    // SAFETY: the codes' bytes.
    let [first, second] = unsafe { put_codes(codes, target) };
    (
        largest,
        Numbers::new(largest / STEPS, first + second, first),
    )
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

/// Writes the codes of a group; returns the sums of its halves.
///
/// # Safety
/// AVX2; 32 writable bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn put_codes([a, b, c, d]: [__m256i; 4], target: *mut u8) -> [i32; 2] {
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
