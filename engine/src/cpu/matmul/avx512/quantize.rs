//! Quantisation of one group of activations.

use std::arch::x86_64::*;

use super::super::format::GROUP;
use super::super::quantize::{BLOCK_BYTES, FINE_BASE, Quantized, TINY, store};

/// Ties go to the even code.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Quantises one row into lane `lane` of the tile at `tile`.
///
/// # Safety
/// AVX-512 with VNNI; the rest as `quantize::quantize_row`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in super::super) unsafe fn quantize_row<const PLANES: usize>(
    values: &[f32],
    tile: *mut u8,
    lane: usize,
) {
    for (group, values) in values.chunks_exact(GROUP).enumerate() {
        // SAFETY: 32 values; inside the blocks of this group.
        unsafe {
            let quantized = quantize_group::<PLANES>(values.as_ptr());
            store(tile.add(group * BLOCK_BYTES * PLANES), lane, &quantized);
        }
    }
}

/// As the portable one, with the same bits.
///
/// # Safety
/// AVX-512 with VNNI; 32 readable values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
unsafe fn quantize_group<const PLANES: usize>(values: *const f32) -> Quantized<PLANES> {
    // SAFETY: by the contract; unaligned loads.
    let (first, second) = unsafe {
        (
            _mm512_loadu_ps(values),
            _mm512_loadu_ps(values.add(GROUP / 2)),
        )
    };
    let mask = _mm512_set1_epi32(0x7fff_ffff);
    let largest = _mm512_max_epi32(
        _mm512_and_si512(_mm512_castps_si512(first), mask),
        _mm512_and_si512(_mm512_castps_si512(second), mask),
    );
    let largest = f32::from_bits(_mm512_reduce_max_epi32(largest) as u32);
    if !largest.is_finite() {
        return Quantized::empty(f32::NAN);
    }
    if largest < TINY {
        return Quantized::empty(0.0);
    }
    let steps = Quantized::<PLANES>::STEPS;
    let mut group = Quantized::<PLANES>::empty(largest / steps);
    let inverse = _mm512_set1_ps(steps / largest);
    let mut first = _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(first, inverse));
    let mut second = _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(second, inverse));
    if PLANES == 2 {
        let high = [high_digits(first), high_digits(second)];
        let base = _mm512_set1_epi32(FINE_BASE);
        let low = [
            _mm512_sub_epi32(first, _mm512_mullo_epi32(high[0], base)),
            _mm512_sub_epi32(second, _mm512_mullo_epi32(high[1], base)),
        ];
        put_plane(&mut group, 1, low[0], low[1]);
        [first, second] = high;
    }
    put_plane(&mut group, 0, first, second);
    group
}

/// The high digits of two-digit codes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn high_digits(codes: __m512i) -> __m512i {
    let reciprocal = _mm512_set1_ps(1.0 / FINE_BASE as f32);
    _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(_mm512_cvtepi32_ps(codes), reciprocal))
}

/// Writes the codes and sums of a plane.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn put_plane<const PLANES: usize>(
    group: &mut Quantized<PLANES>,
    plane: usize,
    first: __m512i,
    second: __m512i,
) {
    let codes = _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
    // Sums of quads, then of each 128-bit lane: a half group.
    let quads = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
    let pairs = _mm256_add_epi32(quads, _mm256_shuffle_epi32::<0b01_00_11_10>(quads));
    let sums = _mm256_add_epi32(pairs, _mm256_shuffle_epi32::<0b10_11_00_01>(pairs));
    group.halves[plane] = [
        _mm256_extract_epi16::<0>(sums) as i16,
        _mm256_extract_epi16::<8>(sums) as i16,
    ];
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(group.codes[plane].as_mut_ptr().cast(), codes) };
}
