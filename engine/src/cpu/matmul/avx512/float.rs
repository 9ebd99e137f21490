//! Float products: sixteen rows by up to twelve tokens in registers.

use std::arch::x86_64::*;

use super::super::activations::TILE_ROWS;
use super::super::format::{Float, PANEL_ROWS};
use super::super::kernel::{FloatTile, Lanes, MAX_TOKENS};

const TILES: usize = MAX_TOKENS.div_ceil(TILE_ROWS);
const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Runs one tile.
///
/// # Safety
/// As [`FloatTile`] states, AVX-512, and `tokens` is one of [`super::TOKENS`].
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
    // SAFETY: by the contract.
    unsafe {
        match tokens {
            1 => rows_by_tokens::<TYPE, 1>(tile, out),
            2 => rows_by_tokens::<TYPE, 2>(tile, out),
            3 => rows_by_tokens::<TYPE, 3>(tile, out),
            4 => rows_by_tokens::<TYPE, 4>(tile, out),
            8 => rows_by_tokens::<TYPE, 8>(tile, out),
            _ => rows_by_tokens::<TYPE, MAX_TOKENS>(tile, out),
        }
    }
}

/// One column of sixteen weights.
///
/// # Safety
/// AVX-512 F; `weights` has more than `column` columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn load<const TYPE: u8>(weights: *const u8, column: usize) -> __m512 {
    let size = if TYPE == F32 { 4 } else { 2 };
    // SAFETY: by the contract; unaligned loads.
    unsafe {
        let at = weights.add(column * PANEL_ROWS * size);
        if TYPE == F32 {
            return _mm512_loadu_ps(at.cast());
        }
        let values = _mm256_loadu_si256(at.cast());
        if TYPE == F16 {
            _mm512_cvtph_ps(values)
        } else {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(values)))
        }
    }
}

/// # Safety
/// As [`FloatTile`] states for `TOKENS` tokens, and AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn rows_by_tokens<const TYPE: u8, const TOKENS: usize>(
    tile: &FloatTile,
    out: &mut [Lanes; MAX_TOKENS],
) {
    let mut tiles = [tile.activations; TILES];
    for (index, pointer) in tiles
        .iter_mut()
        .enumerate()
        .take(TOKENS.div_ceil(TILE_ROWS))
    {
        // SAFETY: the tokens span this many tiles.
        *pointer = unsafe { tile.activations.add(index * tile.stride) };
    }
    let mut even = [_mm512_setzero_ps(); TOKENS];
    let mut odd = [_mm512_setzero_ps(); TOKENS];
    for column in (0..tile.columns / 2 * 2).step_by(2) {
        // SAFETY: both columns are below `columns`.
        unsafe {
            add_column::<TYPE, TOKENS>(tile.panel, &tiles, column, &mut even);
            add_column::<TYPE, TOKENS>(tile.panel, &tiles, column + 1, &mut odd);
        }
    }
    if tile.columns % 2 == 1 {
        // SAFETY: the last column.
        unsafe { add_column::<TYPE, TOKENS>(tile.panel, &tiles, tile.columns - 1, &mut even) };
    }
    for (lanes, (even, odd)) in out.iter_mut().zip(even.into_iter().zip(odd)) {
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(lanes.0.as_mut_ptr(), _mm512_add_ps(even, odd)) };
    }
}

/// # Safety
/// AVX-512; `weights` and `tiles` have more than `column` columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn add_column<const TYPE: u8, const TOKENS: usize>(
    weights: *const u8,
    tiles: &[*const f32; TILES],
    column: usize,
    chain: &mut [__m512; TOKENS],
) {
    // SAFETY: by the contract.
    let weights = unsafe { load::<TYPE>(weights, column) };
    for (token, accumulator) in chain.iter_mut().enumerate() {
        // SAFETY: inside the tile.
        let x = unsafe { *tiles[token / TILE_ROWS].add(column * TILE_ROWS + token % TILE_ROWS) };
        *accumulator = _mm512_fmadd_ps(weights, _mm512_set1_ps(x), *accumulator);
    }
}
