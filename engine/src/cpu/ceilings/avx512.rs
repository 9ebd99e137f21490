//! Arithmetic on 512-bit vectors. Which kinds exist is the parent's business.

#[allow(clippy::wildcard_imports)] // Intrinsics only.
use std::arch::x86_64::*;
use std::hint::black_box;

use super::{
    Arithmetic, Kernel, TURNS,
    reading::{AHEAD, STEP, STREAMS},
};

/// Chains that do not wait for each other: two units of latency four need eight; more do no harm.
const CHAINS: usize = 16;
/// Values of 32 bits in a vector.
const LANES: usize = 16;

pub(super) fn kernel(kind: Arithmetic) -> Kernel {
    match kind {
        Arithmetic::F32 => f32_chains,
        Arithmetic::Bf16 if is_x86_feature_detected!("avx512bf16") => bf16_chains,
        Arithmetic::Bf16 => bf16_widened,
        Arithmetic::Int8 => int8_chains,
    }
}

#[target_feature(enable = "avx512f")]
fn f32_chains() -> u64 {
    let (x, y) = black_box((_mm512_set1_ps(0.5), _mm512_set1_ps(0.25)));
    let mut sums = [_mm512_setzero_ps(); CHAINS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(x, y, *sum);
        }
    }
    black_box(sums);
    (TURNS * CHAINS * LANES * 2) as u64
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_chains() -> u64 {
    let (x, y) = black_box((_mm512_set1_epi16(0x3f00), _mm512_set1_epi16(0x3e80)));
    // SAFETY: both are 512 bits, and every bit pattern is a value.
    let (x, y): (__m512bh, __m512bh) = unsafe {
        (
            std::mem::transmute::<__m512i, __m512bh>(x),
            std::mem::transmute::<__m512i, __m512bh>(y),
        )
    };
    let mut sums = [_mm512_setzero_ps(); CHAINS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, x, y);
        }
    }
    black_box(sums);
    (TURNS * CHAINS * LANES * 4) as u64
}

/// Without a bf16 unit, a vector of pairs is widened into two of f32.
#[target_feature(enable = "avx512f")]
fn bf16_widened() -> u64 {
    let pairs = black_box([_mm512_set1_epi32(0x3f00_3e80); CHAINS]);
    let (odd, even) = black_box((_mm512_set1_ps(0.5), _mm512_set1_ps(0.25)));
    let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let mut sums = [_mm512_setzero_ps(); CHAINS];
    for _ in 0..TURNS {
        for (sum, pair) in sums.iter_mut().zip(black_box(&pairs)) {
            let upper = _mm512_castsi512_ps(_mm512_and_si512(*pair, high));
            let lower = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(*pair));
            *sum = _mm512_fmadd_ps(lower, even, _mm512_fmadd_ps(upper, odd, *sum));
        }
    }
    black_box(sums);
    (TURNS * CHAINS * LANES * 4) as u64
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn int8_chains() -> u64 {
    let (x, y) = black_box((_mm512_set1_epi8(7), _mm512_set1_epi8(-3)));
    let mut sums = [_mm512_setzero_si512(); CHAINS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, x, y);
        }
    }
    black_box(sums);
    (TURNS * CHAINS * LANES * 8) as u64
}

/// Reads [`STREAMS`] equal parts of `data` side by side; the bits of all words read, so that no read is
/// left out.
///
/// # Safety
/// AVX-512F is there.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn read(data: &[u8]) -> u64 {
    let part = data.len() / STREAMS;
    let mut sums = [_mm512_setzero_si512(); STREAMS];
    for at in (0..=part - STEP).step_by(STEP) {
        for (stream, sum) in sums.iter_mut().enumerate() {
            let place = data.as_ptr().wrapping_add(stream * part + at);
            for line in (0..STEP).step_by(64) {
                // Prefetching past the end touches nothing.
                _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(AHEAD + line).cast());
                // SAFETY: a whole step of this stream's part is left.
                let words = unsafe { _mm512_loadu_si512(place.add(line).cast()) };
                *sum = _mm512_or_si512(*sum, words);
            }
        }
    }
    let all = sums
        .into_iter()
        .fold(_mm512_setzero_si512(), |all, sum| _mm512_or_si512(all, sum));
    _mm512_reduce_or_epi64(all).cast_unsigned()
}
