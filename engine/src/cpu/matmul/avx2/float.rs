//! Float products: eight rows by up to three tokens in registers.

use std::arch::x86_64::*;

use super::super::format::{Float, PANEL_ROWS};
use super::super::kernel::{FloatTile, Lanes, Outputs};
use super::super::quantize::TILE_ROWS;

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Most tokens of a kernel: two kernels to a tile.
const TOKENS: usize = TILE_ROWS / 2;

/// Runs one tile.
///
/// # Safety
/// As [`FloatTile`] states, and AVX2 with FMA and F16C.
pub(in super::super) unsafe fn float(
    float: Float,
    tile: &FloatTile<'_>,
    tokens: usize,
    out: &mut Outputs,
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
unsafe fn by_tokens<const TYPE: u8>(tile: &FloatTile<'_>, tokens: usize, out: &mut Outputs) {
    for (&panel, out) in tile.panels.iter().zip(out) {
        for (index, out) in out[..tokens].chunks_mut(TOKENS).enumerate() {
            for row in [0, PANEL_ROWS / 2] {
                // SAFETY: by the contract.
                unsafe {
                    let x = tile.activations.add(index * TOKENS);
                    let part = Part {
                        panel,
                        row,
                        x,
                        columns: tile.columns,
                    };
                    match out.len() {
                        1 => rows_by_tokens::<TYPE, 1>(part, out),
                        2 => rows_by_tokens::<TYPE, 2>(part, out),
                        _ => rows_by_tokens::<TYPE, TOKENS>(part, out),
                    }
                }
            }
        }
    }
}

/// What of a tile a kernel computes: eight rows of a panel from `row` on, by the tokens at `x`.
#[derive(Clone, Copy)]
struct Part {
    panel: *const u8,
    row: usize,
    x: *const f32,
    columns: usize,
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
unsafe fn rows_by_tokens<const TYPE: u8, const TOKENS: usize>(part: Part, out: &mut [Lanes]) {
    let mut chains = [[_mm256_setzero_ps(); TOKENS]; 2];
    let [even, odd] = &mut chains;
    for column in (0..part.columns / 2 * 2).step_by(2) {
        // SAFETY: both columns are below `columns`.
        unsafe {
            add_column::<TYPE, TOKENS>(part, column, even);
            add_column::<TYPE, TOKENS>(part, column + 1, odd);
        }
    }
    if part.columns % 2 == 1 {
        // SAFETY: the last column.
        unsafe { add_column::<TYPE, TOKENS>(part, part.columns - 1, even) };
    }
    for (lanes, (even, odd)) in out.iter_mut().zip(even.iter().zip(odd)) {
        // SAFETY: eight of sixteen floats from `row` on.
        unsafe {
            _mm256_storeu_ps(
                lanes.0.as_mut_ptr().add(part.row),
                _mm256_add_ps(*even, *odd),
            );
        };
    }
}

/// # Safety
/// As [`FloatTile`] states, AVX2 with FMA and F16C, and `column` is one of its columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_column<const TYPE: u8, const TOKENS: usize>(
    part: Part,
    column: usize,
    chain: &mut [__m256; TOKENS],
) {
    // SAFETY: by the contract.
    let weights = unsafe { load::<TYPE>(part.panel, column, part.row) };
    for (token, accumulator) in chain.iter_mut().enumerate() {
        // SAFETY: inside the tile.
        let x = unsafe { *part.x.add(column * TILE_ROWS + token) };
        *accumulator = _mm256_fmadd_ps(weights, _mm256_set1_ps(x), *accumulator);
    }
}
