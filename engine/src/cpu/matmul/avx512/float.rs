//! Float products: one panel by up to ten tokens in registers.

use std::arch::x86_64::*;

use super::super::format::{Float, PANEL_ROWS};
use super::super::kernel::{Strip, Tile};
use super::fetch::Fetch;

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Most tokens of a tile: two chains each.
const MOST: usize = 10;

/// Computes a strip.
///
/// # Safety
/// As [`Strip`] states, and AVX-512.
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
    for tile in strip.tiles(MOST, strip.columns / 2) {
        // SAFETY: by the contract.
        unsafe {
            match tile.tokens {
                1 => panel_by_tokens::<TYPE, 1>(strip, tile),
                2 => panel_by_tokens::<TYPE, 2>(strip, tile),
                3 => panel_by_tokens::<TYPE, 3>(strip, tile),
                4 => panel_by_tokens::<TYPE, 4>(strip, tile),
                5 => panel_by_tokens::<TYPE, 5>(strip, tile),
                6 => panel_by_tokens::<TYPE, 6>(strip, tile),
                7 => panel_by_tokens::<TYPE, 7>(strip, tile),
                8 => panel_by_tokens::<TYPE, 8>(strip, tile),
                9 => panel_by_tokens::<TYPE, 9>(strip, tile),
                _ => panel_by_tokens::<TYPE, MOST>(strip, tile),
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
/// As [`Strip`] states, and AVX-512; `tile` is a tile of `TOKENS` tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn panel_by_tokens<const TYPE: u8, const TOKENS: usize>(strip: &Strip, tile: Tile) {
    let (panel, stride) = (strip.panel, strip.stride);
    let mut fetch = Fetch::new(tile.ahead);
    let mut even = [_mm512_setzero_ps(); TOKENS];
    let mut odd = [_mm512_setzero_ps(); TOKENS];
    for column in (0..strip.columns / 2 * 2).step_by(2) {
        fetch.step();
        // SAFETY: both columns are below `columns`, which each row has.
        unsafe {
            let x = tile.activations.add(column * 4);
            add_column::<TYPE, TOKENS>(panel, column, x, stride, &mut even);
            add_column::<TYPE, TOKENS>(panel, column + 1, x.add(4), stride, &mut odd);
        }
    }
    if strip.columns % 2 == 1 {
        let last = strip.columns - 1;
        // SAFETY: the last column.
        unsafe {
            let x = tile.activations.add(last * 4);
            add_column::<TYPE, TOKENS>(panel, last, x, stride, &mut even);
        }
    }
    for (token, (even, odd)) in even.into_iter().zip(odd).enumerate() {
        // SAFETY: sixteen outputs of each token, by the contract.
        unsafe {
            let target = tile.out.add(token * strip.out_stride);
            _mm512_storeu_ps(target, _mm512_add_ps(even, odd));
        };
    }
}

/// # Safety
/// AVX-512; the panel has more than `column` columns, of which `x` is the first token's value.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn add_column<const TYPE: u8, const TOKENS: usize>(
    panel: *const u8,
    column: usize,
    x: *const u8,
    stride: usize,
    chain: &mut [__m512; TOKENS],
) {
    // SAFETY: by the contract.
    let weights = unsafe { load::<TYPE>(panel, column) };
    for (token, accumulator) in chain.iter_mut().enumerate() {
        // Every third row has a pointer of its own, from which two more are reached by index.
        // SAFETY: by the contract; values are aligned, as rows and their strides are.
        let value = unsafe {
            let third = x.add(token / 3 * (3 * stride));
            *third.add(token % 3 * stride).cast::<f32>()
        };
        *accumulator = _mm512_fmadd_ps(weights, _mm512_set1_ps(value), *accumulator);
    }
}
