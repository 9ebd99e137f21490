//! Integer products: eight rows by up to three tokens in registers.

use std::arch::x86_64::*;

use super::super::format::{GROUP, LINE, PANEL_ROWS, QUAD, Scaling, Width};
use super::super::kernel::{IntegerTile, Lanes, Outputs};
use super::super::quantize::{BLOCK_BYTES, FINE_BASE, SCALED_SUMS, SCALES, SUMS, TILE_ROWS};
use super::codes::{Codes, Eight, Five, Four, Six};
use super::scales::{Minimum, Offset, Scales, SuperHalves, SuperMinimum};

/// Rows of half a panel.
const ROWS: usize = PANEL_ROWS / 2;

/// Most tokens of a kernel: two kernels to a tile.
const TOKENS: usize = TILE_ROWS / 2;

/// Runs one tile.
///
/// # Safety
/// As [`IntegerTile`] states, and AVX2 with FMA and F16C.
pub(in super::super) unsafe fn integer(
    width: Width,
    scaling: Scaling,
    tile: &IntegerTile<'_>,
    tokens: usize,
    out: &mut Outputs,
) {
    // SAFETY: by this function's contract.
    unsafe {
        match (width, scaling) {
            (Width::Four, Scaling::Offset(_)) => by_tokens::<Four, Offset<8>>(tile, tokens, out),
            (Width::Four, Scaling::Minimum) => by_tokens::<Four, Minimum>(tile, tokens, out),
            (Width::Four, _) => by_tokens::<Four, SuperMinimum>(tile, tokens, out),
            (Width::Five, Scaling::Offset(_)) => by_tokens::<Five, Offset<16>>(tile, tokens, out),
            (Width::Five, Scaling::Minimum) => by_tokens::<Five, Minimum>(tile, tokens, out),
            (Width::Five, _) => by_tokens::<Five, SuperMinimum>(tile, tokens, out),
            (Width::Six, _) => by_tokens::<Six, SuperHalves>(tile, tokens, out),
            (Width::Eight, _) => by_tokens::<Eight, Offset<128>>(tile, tokens, out),
        }
    }
}

/// # Safety
/// As [`integer`].
unsafe fn by_tokens<C: Codes, S: Scales>(tile: &IntegerTile<'_>, tokens: usize, out: &mut Outputs) {
    for (&panel, out) in tile.panels.iter().zip(out) {
        for (index, out) in out[..tokens].chunks_mut(TOKENS).enumerate() {
            for row in [0, ROWS] {
                let part = Part {
                    panel,
                    row,
                    token: index * TOKENS,
                };
                // SAFETY: by the contract.
                unsafe {
                    match (out.len(), tile.fine) {
                        (1, false) => rows_by_tokens::<C, S, 1, 1>(tile, part, out),
                        (2, false) => rows_by_tokens::<C, S, 1, 2>(tile, part, out),
                        (_, false) => rows_by_tokens::<C, S, 1, TOKENS>(tile, part, out),
                        (1, true) => rows_by_tokens::<C, S, 2, 1>(tile, part, out),
                        (2, true) => rows_by_tokens::<C, S, 2, 2>(tile, part, out),
                        (_, true) => rows_by_tokens::<C, S, 2, TOKENS>(tile, part, out),
                    }
                }
            }
        }
    }
}

/// What of a tile a kernel computes: eight rows of a panel from `row` on, by tokens from `token` on.
#[derive(Clone, Copy)]
struct Part {
    panel: *const u8,
    row: usize,
    token: usize,
}

/// A group's activations: where the first token's codes and where its scales start.
#[derive(Clone, Copy)]
struct Block {
    codes: *const u8,
    scales: *const u8,
}

impl Block {
    /// The block of the high (0) or the low digits.
    ///
    /// # Safety
    /// The activations have this plane.
    #[inline]
    unsafe fn plane(self, plane: usize) -> Self {
        let bytes = plane * BLOCK_BYTES;
        // SAFETY: by the contract.
        unsafe {
            Self {
                codes: self.codes.add(bytes),
                scales: self.scales.add(bytes),
            }
        }
    }
}

/// Four bytes of every lane from memory.
///
/// # Safety
/// AVX2; four readable bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn broadcast(at: *const u8) -> __m256i {
    // SAFETY: by the contract.
    _mm256_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

/// # Safety
/// As [`IntegerTile`] states for `PLANES` and `TOKENS`, and AVX2 with FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_by_tokens<C: Codes, S: Scales, const PLANES: usize, const TOKENS: usize>(
    tile: &IntegerTile<'_>,
    part: Part,
    out: &mut [Lanes],
) {
    let Part { panel, row, token } = part;
    let halves = matches!(S::SCALING, Scaling::SuperHalves);
    let minimum = matches!(S::SCALING, Scaling::Minimum | Scaling::SuperMinimum);
    let mut accumulators = [_mm256_setzero_ps(); TOKENS];
    for group in 0..tile.groups {
        // SAFETY: `group` is one of the panel's groups; all offsets stay in it and in its blocks.
        unsafe {
            let place = S::SCALING.place(C::WIDTH, group);
            let codes = panel.add(place.codes + row * QUAD);
            let block = tile.activations.add(group * PLANES * BLOCK_BYTES);
            let block = Block {
                codes: block.add(token * GROUP),
                scales: block.add(token * 4),
            };
            let (scale, second) = S::load(panel, place, row);
            let mut sums = [[_mm256_setzero_si256(); TOKENS]; PLANES];
            let mut narrow = sums;
            for (plane, (narrow, sums)) in narrow.iter_mut().zip(&mut sums).enumerate() {
                let block = block.plane(plane);
                add_pair::<C, TOKENS, 0>(codes, block, narrow, sums);
                add_pair::<C, TOKENS, 1>(codes, block, narrow, sums);
                if halves {
                    take_offset::<C, S, TOKENS, 0>(block, sums);
                }
            }
            if halves {
                scaled(scale, block, &sums, &mut accumulators);
                sums = [[_mm256_setzero_si256(); TOKENS]; PLANES];
            }
            for (plane, (narrow, sums)) in narrow.iter_mut().zip(&mut sums).enumerate() {
                let block = block.plane(plane);
                add_pair::<C, TOKENS, 2>(codes, block, narrow, sums);
                add_pair::<C, TOKENS, 3>(codes, block, narrow, sums);
                take_offset::<C, S, TOKENS, 1>(block, sums);
            }
            scaled(
                if halves { second } else { scale },
                block,
                &sums,
                &mut accumulators,
            );
            if minimum {
                for (token, accumulator) in accumulators.iter_mut().enumerate() {
                    let sum =
                        _mm256_castsi256_ps(broadcast(block.scales.add(SCALED_SUMS + token * 4)));
                    *accumulator = _mm256_fmadd_ps(second, sum, *accumulator);
                }
            }
        }
    }
    for (lanes, accumulator) in out.iter_mut().zip(accumulators) {
        // SAFETY: eight of sixteen floats from `row` on.
        unsafe { _mm256_storeu_ps(lanes.0.as_mut_ptr().add(row), accumulator) };
    }
}

/// Takes the offset times the activations' sum off the integer sums.
///
/// # Safety
/// AVX2; `block` is a group's block.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn take_offset<C: Codes, S: Scales, const TOKENS: usize, const HALF: usize>(
    block: Block,
    sums: &mut [__m256i; TOKENS],
) {
    let offset = S::SCALING.offset();
    if offset == 0 || C::SIGNED {
        return;
    }
    // Pairs of 16-bit factors for the sums of the two halves: both, or the one half's.
    let factors = match (S::SCALING, HALF) {
        (Scaling::SuperHalves, 0) => offset,
        (Scaling::SuperHalves, _) => offset << 16,
        _ => offset | (offset << 16),
    };
    let factors = _mm256_set1_epi32(factors);
    for (token, sum) in sums.iter_mut().enumerate() {
        // SAFETY: inside the block.
        let pair = unsafe { broadcast(block.scales.add(SUMS + token * 4)) };
        *sum = _mm256_sub_epi32(*sum, _mm256_madd_epi16(factors, pair));
    }
}

/// Adds eight columns' products, to the 16-bit sums and, when these are full, on to the 32-bit ones.
///
/// # Safety
/// AVX2; `codes` and `block` point at a group's half tile and block.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_pair<C: Codes, const TOKENS: usize, const PAIR: usize>(
    codes: *const u8,
    block: Block,
    narrow: &mut [__m256i; TOKENS],
    sums: &mut [__m256i; TOKENS],
) {
    const { assert!(LINE == 2 * ROWS * QUAD) };
    // SAFETY: by the contract.
    let (even, odd) = unsafe { C::pair::<PAIR>(codes) };
    let ones = _mm256_set1_epi16(1);
    for (token, (narrow, sum)) in narrow.iter_mut().zip(sums).enumerate() {
        // SAFETY: inside the block.
        let x = unsafe {
            let at = block.codes.add(token * GROUP + PAIR * 2 * QUAD);
            [broadcast(at), broadcast(at.add(QUAD))]
        };
        if C::SIGNED {
            for (codes, x) in [even, odd].into_iter().zip(x) {
                // |code| ≤ 128 and |x| ≤ 127: two products are at most 32,512.
                let products =
                    _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(products, ones));
            }
            continue;
        }
        *narrow = _mm256_add_epi16(*narrow, _mm256_maddubs_epi16(even, x[0]));
        *narrow = _mm256_add_epi16(*narrow, _mm256_maddubs_epi16(odd, x[1]));
        if ((PAIR + 1) * 2).is_multiple_of(C::QUADS) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*narrow, ones));
            *narrow = _mm256_setzero_si256();
        }
    }
}

/// Adds integer sums times both scales.
///
/// # Safety
/// AVX2 with FMA; `block` is a group's block.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn scaled<const PLANES: usize, const TOKENS: usize>(
    scale: __m256,
    block: Block,
    sums: &[[__m256i; TOKENS]; PLANES],
    accumulators: &mut [__m256; TOKENS],
) {
    for (token, accumulator) in accumulators.iter_mut().enumerate() {
        let mut sum = sums[0][token];
        if PLANES == 2 {
            let high = _mm256_mullo_epi32(sum, _mm256_set1_epi32(FINE_BASE));
            sum = _mm256_add_epi32(high, sums[1][token]);
        }
        // SAFETY: inside the block.
        let x = unsafe { broadcast(block.scales.add(SCALES + token * 4)) };
        let factor = _mm256_mul_ps(scale, _mm256_castsi256_ps(x));
        *accumulator = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(sum), *accumulator);
    }
}
