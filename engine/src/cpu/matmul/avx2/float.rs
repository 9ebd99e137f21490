//! Float products: eight rows by up to four tokens in registers.

use std::arch::x86_64::*;

use super::super::activations::TILE_ROWS;
use super::super::format::{Float, PANEL_ROWS};
use super::super::kernel::{FloatTile, Lanes, MAX_TOKENS};

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Runs one tile of at most [`TILE_ROWS`] tokens.
///
/// # Safety
/// As [`FloatTile`] states, and AVX2 with FMA and F16C.
pub(in super::super) unsafe fn float(
    float: Float,
    tile: &FloatTile,
    tokens: usize,
    out: &mut [Lanes; MAX_TOKENS],
) {
    // SAFETY: by this function's contract.
    unsafe {
        match float {
            Float::F32 => by_tokens::<F32>(tile, tokens, out),
            Float::F16 => by_tokens::<F16>(tile, tokens, out),
            Float::Bf16 => by_tokens::<BF16>(tile, tokens, out),
        }
    }
}

/// # Safety
/// As [`float`].
unsafe fn by_tokens<const TYPE: u8>(
    tile: &FloatTile,
    tokens: usize,
    out: &mut [Lanes; MAX_TOKENS],
) {
    for row in [0, PANEL_ROWS / 2] {
        // SAFETY: by the contract.
        unsafe {
            match tokens {
                1 => rows_by_tokens::<TYPE, 1>(tile, row, out),
                2 => rows_by_tokens::<TYPE, 2>(tile, row, out),
                3 => rows_by_tokens::<TYPE, 3>(tile, row, out),
                _ => rows_by_tokens::<TYPE, TILE_ROWS>(tile, row, out),
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

/// # Safety
/// As [`FloatTile`] states for `TOKENS` tokens, and AVX2 with FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_by_tokens<const TYPE: u8, const TOKENS: usize>(
    tile: &FloatTile,
    row: usize,
    out: &mut [Lanes; MAX_TOKENS],
) {
    let mut chains = [[_mm256_setzero_ps(); TOKENS]; 2];
    let [even, odd] = &mut chains;
    for column in (0..tile.columns / 2 * 2).step_by(2) {
        // SAFETY: both columns are below `columns`.
        unsafe {
            add_column::<TYPE, TOKENS>(tile, row, column, even);
            add_column::<TYPE, TOKENS>(tile, row, column + 1, odd);
        }
    }
    if tile.columns % 2 == 1 {
        // SAFETY: the last column.
        unsafe { add_column::<TYPE, TOKENS>(tile, row, tile.columns - 1, even) };
    }
    for (lanes, (even, odd)) in out.iter_mut().zip(even.iter().zip(odd)) {
        // SAFETY: eight of sixteen floats from `row` on.
        unsafe { _mm256_storeu_ps(lanes.0.as_mut_ptr().add(row), _mm256_add_ps(*even, *odd)) };
    }
}

/// # Safety
/// As [`FloatTile`] states, AVX2 with FMA and F16C, and `column` is one of its columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_column<const TYPE: u8, const TOKENS: usize>(
    tile: &FloatTile,
    row: usize,
    column: usize,
    chain: &mut [__m256; TOKENS],
) {
    // SAFETY: by the contract.
    let weights = unsafe { load::<TYPE>(tile.panel, column, row) };
    for (token, accumulator) in chain.iter_mut().enumerate() {
        // SAFETY: inside the tile.
        let x = unsafe { *tile.activations.add(column * TILE_ROWS + token) };
        *accumulator = _mm256_fmadd_ps(weights, _mm256_set1_ps(x), *accumulator);
    }
}
