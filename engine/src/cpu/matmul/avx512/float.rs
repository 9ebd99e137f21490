//! Float products: one panel by up to six tokens, or two by six, in registers.

use std::arch::x86_64::*;

use super::super::format::{Float, LINE, PANEL_ROWS};
use super::super::kernel::{FloatTile, Lanes, Outputs};
use super::super::quantize::TILE_ROWS;

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Runs one tile.
///
/// # Safety
/// As [`FloatTile`] states, AVX-512, and `tokens` is 1 to [`TILE_ROWS`].
pub(in super::super) unsafe fn float(
    float: Float,
    tile: &FloatTile<'_>,
    tokens: usize,
    out: &mut Outputs,
) {
    // SAFETY: by this function's contract.
    unsafe {
        match float {
            Float::F32 => by_shape::<F32>(tile, tokens, out),
            Float::F16 => by_shape::<F16>(tile, tokens, out),
            Float::Bf16 => by_shape::<BF16>(tile, tokens, out),
        }
    }
}

/// # Safety
/// As [`float`].
unsafe fn by_shape<const TYPE: u8>(tile: &FloatTile<'_>, tokens: usize, out: &mut Outputs) {
    // SAFETY: by the contract.
    unsafe {
        if let (&[first, second], TILE_ROWS) = (tile.panels, tokens) {
            return panels_by_tokens::<TYPE, 2, TILE_ROWS>([first, second], tile, out);
        }
        for (panel, out) in tile.panels.iter().zip(out.chunks_exact_mut(1)) {
            let panel = [*panel];
            match tokens {
                1 => panels_by_tokens::<TYPE, 1, 1>(panel, tile, out),
                2 => panels_by_tokens::<TYPE, 1, 2>(panel, tile, out),
                3 => panels_by_tokens::<TYPE, 1, 3>(panel, tile, out),
                4 => panels_by_tokens::<TYPE, 1, 4>(panel, tile, out),
                5 => panels_by_tokens::<TYPE, 1, 5>(panel, tile, out),
                _ => panels_by_tokens::<TYPE, 1, TILE_ROWS>(panel, tile, out),
            }
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
/// As [`FloatTile`] states for these panels and `TOKENS` tokens, and AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn panels_by_tokens<const TYPE: u8, const PANELS: usize, const TOKENS: usize>(
    panels: [*const u8; PANELS],
    tile: &FloatTile<'_>,
    out: &mut [[Lanes; TILE_ROWS]],
) {
    let mut even = [[_mm512_setzero_ps(); TOKENS]; PANELS];
    let mut odd = [[_mm512_setzero_ps(); TOKENS]; PANELS];
    for column in (0..tile.columns / 2 * 2).step_by(2) {
        // SAFETY: both columns are below `columns`, the tile has six values of each.
        unsafe {
            if tile.ahead != 0 {
                fetch::<TYPE, PANELS>(panels, column, tile.ahead);
            }
            let x = tile.activations.add(column * TILE_ROWS);
            add_column::<TYPE, PANELS, TOKENS>(panels, column, x, &mut even);
            add_column::<TYPE, PANELS, TOKENS>(panels, column + 1, x.add(TILE_ROWS), &mut odd);
        }
    }
    if tile.columns % 2 == 1 {
        let last = tile.columns - 1;
        // SAFETY: the last column.
        unsafe {
            let x = tile.activations.add(last * TILE_ROWS);
            add_column::<TYPE, PANELS, TOKENS>(panels, last, x, &mut even);
        }
    }
    for (out, (even, odd)) in out.iter_mut().zip(even.into_iter().zip(odd)) {
        for (lanes, (even, odd)) in out.iter_mut().zip(even.into_iter().zip(odd)) {
            // SAFETY: sixteen floats.
            unsafe { _mm512_storeu_ps(lanes.0.as_mut_ptr(), _mm512_add_ps(even, odd)) };
        }
    }
}

/// Asks for two columns of the panels `ahead` bytes on.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch<const TYPE: u8, const PANELS: usize>(
    panels: [*const u8; PANELS],
    column: usize,
    ahead: usize,
) {
    let size = if TYPE == F32 { 4 } else { 2 };
    for panel in panels {
        for line in (0..2 * PANEL_ROWS * size).step_by(LINE) {
            let at = panel.wrapping_add(column * PANEL_ROWS * size + ahead + line);
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }
}

/// # Safety
/// AVX-512; the panels have more than `column` columns, `x` has `TOKENS` values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn add_column<const TYPE: u8, const PANELS: usize, const TOKENS: usize>(
    panels: [*const u8; PANELS],
    column: usize,
    x: *const f32,
    chains: &mut [[__m512; TOKENS]; PANELS],
) {
    let mut weights = [_mm512_setzero_ps(); PANELS];
    for (weights, panel) in weights.iter_mut().zip(panels) {
        // SAFETY: by the contract.
        *weights = unsafe { load::<TYPE>(panel, column) };
    }
    for token in 0..TOKENS {
        // SAFETY: by the contract.
        let x = _mm512_set1_ps(unsafe { *x.add(token) });
        for (chains, weights) in chains.iter_mut().zip(weights) {
            chains[token] = _mm512_fmadd_ps(weights, x, chains[token]);
        }
    }
}
