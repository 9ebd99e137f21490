//! Quantisation of one group of activations.

use std::arch::x86_64::*;

use super::super::activations::{BLOCK_BYTES, Quantized, TINY, store};
use super::super::format::GROUP;

/// Ties go to the even code.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Quantises one row into lane `lane` of the tile at `tile`.
///
/// # Safety
/// AVX-512; the rest as `activations::quantize_row`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
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
/// AVX-512 (F, BW, VL); 32 readable values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
unsafe fn quantize_group(values: *const f32) -> Quantized {
    // SAFETY: by the contract; unaligned loads.
    let (first, second) = unsafe {
        (
            _mm512_loadu_ps(values),
            _mm512_loadu_ps(values.add(GROUP / 2)),
        )
    };
    let magnitude = |x| _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fff_ffff));
    let largest = _mm512_max_epi32(magnitude(first), magnitude(second));
    let largest = f32::from_bits(_mm512_reduce_max_epi32(largest) as u32);
    if !largest.is_finite() {
        return Quantized {
            codes: [0; GROUP],
            scale: f32::NAN,
            halves: [0; 2],
        };
    }
    if largest < TINY {
        return Quantized {
            codes: [0; GROUP],
            scale: 0.0,
            halves: [0; 2],
        };
    }
    let inverse = _mm512_set1_ps(127.0 / largest);
    let round = |x| _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(x, inverse));
    let (first, second) = (round(first), round(second));
    let halves = [
        _mm512_reduce_add_epi32(first),
        _mm512_reduce_add_epi32(second),
    ];
    let mut codes = [0; GROUP];
    // SAFETY: sixteen bytes each.
    unsafe {
        let at = codes.as_mut_ptr().cast::<u8>();
        _mm_storeu_si128(at.cast(), _mm512_cvtepi32_epi8(first));
        _mm_storeu_si128(at.add(GROUP / 2).cast(), _mm512_cvtepi32_epi8(second));
    }
    Quantized {
        codes,
        scale: largest / 127.0,
        halves: halves.map(|sum| sum as i16),
    }
}
