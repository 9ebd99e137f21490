//! Float products: eight rows by up to four tokens in registers.

use std::arch::x86_64::*;

use super::super::format::{Float, PANEL_ROWS};
use super::super::kernel::{Strip, Tile};

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Most tokens of a tile: two chains each.
const MOST: usize = 4;

/// Computes a strip.
///
/// # Safety
/// As [`Strip`] states, and AVX2 with FMA and F16C.
pub(in super::super) unsafe fn float(float: Float, strip: &Strip) {
    // SAFETY: by this function's contract.
    unsafe {
        match float {
            Float::F32 => by_tokens::<F32>(strip),
            Float::F16 => by_tokens::<F16>(strip),
            Float::Bf16 => by_tokens::<BF16>(strip),
        }
    }
}

/// # Safety
/// As [`float`].
unsafe fn by_tokens<const TYPE: u8>(strip: &Strip) {
    for tile in strip.tiles(MOST, 1) {
        for row in [0, PANEL_ROWS / 2] {
            // SAFETY: by the contract.
            unsafe {
                match tile.tokens {
                    1 => rows_by_tokens::<TYPE, 1>(strip, tile, row),
                    2 => rows_by_tokens::<TYPE, 2>(strip, tile, row),
                    3 => rows_by_tokens::<TYPE, 3>(strip, tile, row),
                    _ => rows_by_tokens::<TYPE, MOST>(strip, tile, row),
                }
            }
        }
    }
}

/// One column of eight weights from `row` on.
///
/// # Safety
/// AVX2 with F16C; `weights` has more than `column` columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<const TYPE: u8>(weights: *const u8, column: usize, row: usize) -> __m256 {
    let size = if TYPE == F32 { 4 } else { 2 };
    // SAFETY: by the contract; unaligned loads.
    unsafe {
        let at = weights.add((column * PANEL_ROWS + row) * size);
        if TYPE == F32 {
            return _mm256_loadu_ps(at.cast());
        }
        let values = _mm_loadu_si128(at.cast());
        if TYPE == F16 {
            _mm256_cvtph_ps(values)
        } else {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(values)))
        }
    }
}

/// Eight rows of the strip's panel from `row` on by the tile's tokens.
///
/// # Safety
/// As [`Strip`] states, and AVX2 with FMA and F16C; `tile` is a tile of `TOKENS` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_by_tokens<const TYPE: u8, const TOKENS: usize>(
    strip: &Strip,
    tile: Tile,
    row: usize,
) {
    let mut chains = [[_mm256_setzero_ps(); TOKENS]; 2];
    for column in 0..strip.columns {
        // SAFETY: one of the columns; values are aligned, as rows and their strides are.
        unsafe {
            let weights = load::<TYPE>(strip.panel, column, row);
            let x = tile.activations.add(column * 4);
            for (token, accumulator) in chains[column % 2].iter_mut().enumerate() {
                let x = *x.add(token * strip.stride).cast::<f32>();
                *accumulator = _mm256_fmadd_ps(weights, _mm256_set1_ps(x), *accumulator);
            }
        }
    }
    let [even, odd] = chains;
    for (token, (even, odd)) in even.into_iter().zip(odd).enumerate() {
        // SAFETY: eight of the token's sixteen outputs from `row` on.
        unsafe {
            let target = tile.out.add(token * strip.out_stride + row);
            _mm256_storeu_ps(target, _mm256_add_ps(even, odd));
        }
    }
}
