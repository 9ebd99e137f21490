//! Arithmetic on 256-bit vectors. Which kinds exist is the parent's business.

#[allow(clippy::wildcard_imports)] // Intrinsics only.
use std::arch::x86_64::*;
use std::hint::black_box;

use super::{
    Arithmetic, Kernel, TURNS,
    reading::{AHEAD, STEP, STREAMS},
};

/// Chains that do not wait for each other, as many as sixteen registers leave room for.
const CHAINS: usize = 10;
/// Values of 32 bits in a vector.
const LANES: usize = 8;

pub(super) fn kernel(kind: Arithmetic) -> Kernel {
    match kind {
        Arithmetic::F32 => f32_chains,
        Arithmetic::Bf16 => bf16_widened,
        Arithmetic::Int8 if is_x86_feature_detected!("avxvnni") => int8_chains,
        Arithmetic::Int8 => int8_widened,
    }
}

#[target_feature(enable = "avx2,fma")]
fn f32_chains() -> u64 {
    let (x, y) = black_box((_mm256_set1_ps(0.5), _mm256_set1_ps(0.25)));
    let mut sums = [_mm256_setzero_ps(); CHAINS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(x, y, *sum);
        }
    }
    black_box(sums);
    (TURNS * CHAINS * LANES * 2) as u64
}

/// There is no bf16 unit: a vector of pairs is widened into two of f32.
#[target_feature(enable = "avx2,fma")]
fn bf16_widened() -> u64 {
    let pairs = [_mm256_set1_epi32(0x3f00_3e80); CHAINS];
    let (odd, even) = black_box((_mm256_set1_ps(0.5), _mm256_set1_ps(0.25)));
    let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    let mut sums = [_mm256_setzero_ps(); CHAINS];
    for _ in 0..TURNS {
        // Operands come from the first-level cache, as in any kernel: else the widening is done once.
        for (sum, pair) in sums.iter_mut().zip(black_box(&pairs)) {
            let upper = _mm256_castsi256_ps(_mm256_and_si256(*pair, high));
            let lower = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(*pair));
            *sum = _mm256_fmadd_ps(lower, even, _mm256_fmadd_ps(upper, odd, *sum));
        }
    }
    black_box(sums);
    (TURNS * CHAINS * LANES * 4) as u64
}

#[target_feature(enable = "avx2,avxvnni")]
fn int8_chains() -> u64 {
    let (x, y) = black_box((_mm256_set1_epi8(7), _mm256_set1_epi8(-3)));
    let mut sums = [_mm256_setzero_si256(); CHAINS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = _mm256_dpbusd_avx_epi32(*sum, x, y);
        }
    }
    black_box(sums);
    (TURNS * CHAINS * LANES * 8) as u64
}

/// Without VNNI, pairs are added in 16 bits, then in 32.
#[target_feature(enable = "avx2")]
fn int8_widened() -> u64 {
    let codes = [_mm256_set1_epi8(7); CHAINS];
    let (x, ones) = black_box((_mm256_set1_epi8(-3), _mm256_set1_epi16(1)));
    let mut sums = [_mm256_setzero_si256(); CHAINS];
    for _ in 0..TURNS {
        for (sum, codes) in sums.iter_mut().zip(black_box(&codes)) {
            let pairs = _mm256_maddubs_epi16(*codes, x);
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
        }
    }
    black_box(sums);
    (TURNS * CHAINS * LANES * 8) as u64
}

/// Reads [`STREAMS`] equal parts of `data` side by side; the bits of all words read, so that no read is
/// left out.
///
/// # Safety
/// AVX2 is there.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn read(data: &[u8]) -> u64 {
    let part = data.len() / STREAMS;
    let mut sums = [_mm256_setzero_si256(); STREAMS];
    for at in (0..=part - STEP).step_by(STEP) {
        for (stream, sum) in sums.iter_mut().enumerate() {
            let place = data.as_ptr().wrapping_add(stream * part + at);
            for line in (0..STEP).step_by(64) {
                // Prefetching past the end touches nothing.
                _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(AHEAD + line).cast());
                // SAFETY: a whole step of this stream's part is left.
                let (first, second) = unsafe {
                    let place = place.add(line);
                    (
                        _mm256_loadu_si256(place.cast()),
                        _mm256_loadu_si256(place.add(32).cast()),
                    )
                };
                *sum = _mm256_or_si256(*sum, _mm256_or_si256(first, second));
            }
        }
    }
    let all = sums
        .into_iter()
        .fold(_mm256_setzero_si256(), |all, sum| _mm256_or_si256(all, sum));
    let words: [u64; 4] = [
        _mm256_extract_epi64::<0>(all),
        _mm256_extract_epi64::<1>(all),
        _mm256_extract_epi64::<2>(all),
        _mm256_extract_epi64::<3>(all),
    ]
    .map(i64::cast_unsigned);
    words.into_iter().fold(0, |all, word| all | word)
}
