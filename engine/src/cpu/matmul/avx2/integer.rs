//! Integer products: eight rows by a few tokens in registers.
//!
//! With AVX-VNNI a product of codes and activations is one instruction, as with AVX-512; without it
//! products go through 16-bit sums, which are widened before they can overflow.

use std::arch::x86_64::*;

use super::super::format::{GROUP, LINE, PANEL_ROWS, QUAD, Scaling, Width};
use super::super::kernel::{Strip, Tile};
use super::super::quantize::{GROUP_BYTES, MINUS_FIRST, MINUS_SUM, SCALE, SCALED_SUM};
use super::codes::{Codes, Eight, Five, Four, Six};
use super::scales::{Minimum, Offset, Scales, SuperHalves, SuperMinimum};

/// Rows of half a panel.
const ROWS: usize = PANEL_ROWS / 2;

/// Computes a strip.
///
/// # Safety
/// As [`Strip`] states, and AVX2 with FMA and F16C; with `VNNI` AVX-VNNI.
pub(in super::super) unsafe fn integer<const VNNI: bool>(
    width: Width,
    scaling: Scaling,
    strip: &Strip,
) {
    // SAFETY: by this function's contract.
    unsafe {
        match (width, scaling) {
            (Width::Four, Scaling::Offset(_)) => by_tokens::<Four, Offset<8>, VNNI>(strip),
            (Width::Four, Scaling::Minimum) => by_tokens::<Four, Minimum, VNNI>(strip),
            (Width::Four, _) => by_tokens::<Four, SuperMinimum, VNNI>(strip),
            (Width::Five, Scaling::Offset(_)) => by_tokens::<Five, Offset<16>, VNNI>(strip),
            (Width::Five, Scaling::Minimum) => by_tokens::<Five, Minimum, VNNI>(strip),
            (Width::Five, _) => by_tokens::<Five, SuperMinimum, VNNI>(strip),
            (Width::Six, _) => by_tokens::<Six, SuperHalves, VNNI>(strip),
            (Width::Eight, _) => by_tokens::<Eight, Offset<128>, VNNI>(strip),
        }
    }
}

/// # Safety
/// As [`integer`].
unsafe fn by_tokens<C: Codes, S: Scales, const VNNI: bool>(strip: &Strip) {
    // SAFETY: by the contract.
    unsafe {
        if VNNI {
            vnni::strip::<C, S>(strip);
        } else {
            plain::strip::<C, S>(strip);
        }
    }
}

/// Kernels compiled for one unit: tiles of one to so many tokens, then the second digits.
macro_rules! kernels {
    ($unit:ident, $vnni:literal, $features:literal, $($tokens:literal)+) => {
        mod $unit {
            use super::*;

            /// # Safety
            /// As [`Strip`] states, and the features.
            pub(super) unsafe fn strip<C: Codes, S: Scales>(strip: &Strip) {
                for tile in strip.tiles([$($tokens),+].len(), 1) {
                    for row in [0, ROWS] {
                        // SAFETY: by the contract.
                        unsafe {
                            match tile.tokens {
                                $($tokens => tokens::<C, S, $tokens>(strip, tile, row),)+
                                more => unreachable!("{more} tokens in a tile"),
                            }
                        }
                    }
                }
                for row in [0, ROWS] {
                    // SAFETY: by the contract.
                    unsafe { second_digits::<C, S>(strip, row) };
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn tokens<C: Codes, S: Scales, const TOKENS: usize>(
                strip: &Strip,
                tile: Tile,
                row: usize,
            ) {
                // SAFETY: by the contract.
                unsafe { rows_by_tokens::<C, S, $vnni, TOKENS>(strip, tile, row) }
            }

            #[target_feature(enable = $features)]
            unsafe fn second_digits<C: Codes, S: Scales>(strip: &Strip, row: usize) {
                // SAFETY: by the contract.
                unsafe { add_second_digits::<C, S, $vnni>(strip, row) }
            }
        }
    };
}

kernels!(plain, false, "avx2,fma,f16c", 1 2 3);
kernels!(vnni, true, "avx2,fma,f16c,avxvnni", 1 2 3 4 5);

/// The same group of several rows of activations.
#[derive(Clone, Copy)]
struct Block {
    first: *const u8,
    stride: usize,
}

impl Block {
    /// Four bytes of a token, in every lane.
    ///
    /// # Safety
    /// AVX2; the token has this group, and four bytes from `at` on are in it.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn broadcast(self, token: usize, at: usize) -> __m256i {
        // Every third row has a pointer of its own, from which two more are reached by index.
        // SAFETY: by the contract.
        unsafe {
            let third = self.first.add(token / 3 * (3 * self.stride));
            let value = third.add(token % 3 * self.stride + at).cast::<i32>();
            _mm256_set1_epi32(value.read_unaligned())
        }
    }
}

/// Eight rows of the strip's panel from `row` on by the tile's tokens.
///
/// # Safety
/// As [`Strip`] states; `tile` is a tile of `TOKENS` tokens; compiled with the features of the unit.
#[inline(always)]
unsafe fn rows_by_tokens<C: Codes, S: Scales, const VNNI: bool, const TOKENS: usize>(
    strip: &Strip,
    tile: Tile,
    row: usize,
) {
    let minimum = matches!(S::SCALING, Scaling::Minimum | Scaling::SuperMinimum);
    // SAFETY: groups below are the panel's and the rows'; all offsets stay in them.
    unsafe {
        let mut accumulators = [_mm256_setzero_ps(); TOKENS];
        for group in 0..strip.columns / GROUP {
            let place = S::SCALING.place(C::WIDTH, group);
            let codes = strip.panel.add(place.codes + row * QUAD);
            let scales = S::load(strip.panel, place, row);
            let block = Block {
                first: tile.activations.add(group * GROUP_BYTES),
                stride: strip.stride,
            };
            add_products::<C, S, VNNI, TOKENS>(codes, scales, block, &mut accumulators);
            if minimum {
                add_minimums(scales.1, block, &mut accumulators);
            }
        }
        for (token, accumulator) in accumulators.into_iter().enumerate() {
            let target = tile.out.add(token * strip.out_stride + row);
            _mm256_storeu_ps(target, accumulator);
        }
    }
}

/// Adds the products of eight rows with second digits to the strip's outputs.
///
/// # Safety
/// As [`rows_by_tokens`]; the outputs hold the rest.
#[inline(always)]
unsafe fn add_second_digits<C: Codes, S: Scales, const VNNI: bool>(strip: &Strip, row: usize) {
    for group in 0..strip.columns / GROUP {
        // SAFETY: one of the strip's groups.
        for token in unsafe { strip.marked(group) } {
            let place = S::SCALING.place(C::WIDTH, group);
            // SAFETY: the group has second digits in the token's row, and its outputs were written.
            unsafe {
                let codes = strip.panel.add(place.codes + row * QUAD);
                let scales = S::load(strip.panel, place, row);
                let x = strip
                    .activations
                    .add(token * strip.stride + strip.second.low);
                let block = Block {
                    first: x.add(group * GROUP_BYTES),
                    stride: 0,
                };
                let out = strip.out.add(token * strip.out_stride + row);
                let mut accumulator = [_mm256_loadu_ps(out)];
                add_products::<C, S, VNNI, 1>(codes, scales, block, &mut accumulator);
                _mm256_storeu_ps(out, accumulator[0]);
            }
        }
    }
}

/// Adds the products of a group's codes, scaled.
///
/// # Safety
/// The features of the unit; `codes` is a group's half tile and `block` the same group of `TOKENS` tokens.
#[inline(always)]
unsafe fn add_products<C: Codes, S: Scales, const VNNI: bool, const TOKENS: usize>(
    codes: *const u8,
    scales: (__m256, __m256),
    block: Block,
    accumulators: &mut [__m256; TOKENS],
) {
    // SAFETY: by the contract.
    unsafe {
        let mut sums = start::<C, S, VNNI, TOKENS, 0>(block);
        let mut narrow = [_mm256_setzero_si256(); TOKENS];
        add_pair::<C, VNNI, TOKENS, 0>(codes, block, &mut narrow, &mut sums);
        add_pair::<C, VNNI, TOKENS, 1>(codes, block, &mut narrow, &mut sums);
        let separate = matches!(S::SCALING, Scaling::SuperHalves);
        if separate {
            add_scaled(scales.0, block, &sums, accumulators);
            sums = start::<C, S, VNNI, TOKENS, 1>(block);
        }
        add_pair::<C, VNNI, TOKENS, 2>(codes, block, &mut narrow, &mut sums);
        add_pair::<C, VNNI, TOKENS, 3>(codes, block, &mut narrow, &mut sums);
        let scale = if separate { scales.1 } else { scales.0 };
        add_scaled(scale, block, &sums, accumulators);
    }
}

/// Integer sums before any product: the offset times minus the activations' sum.
///
/// # Safety
/// AVX2; `block` has `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn start<C: Codes, S: Scales, const VNNI: bool, const TOKENS: usize, const HALF: usize>(
    block: Block,
) -> [__m256i; TOKENS] {
    let mut sums = [_mm256_setzero_si256(); TOKENS];
    let offset = S::SCALING.offset();
    if offset == 0 || (C::SIGNED && !VNNI) {
        return sums;
    }
    let shift = _mm_cvtsi32_si128(offset.trailing_zeros() as i32);
    for (token, sum) in sums.iter_mut().enumerate() {
        // SAFETY: inside the group.
        let minus = unsafe {
            let all = block.broadcast(token, MINUS_SUM);
            let first = block.broadcast(token, MINUS_FIRST);
            match (S::SCALING, HALF) {
                (Scaling::SuperHalves, 0) => first,
                (Scaling::SuperHalves, _) => _mm256_sub_epi32(all, first),
                _ => all,
            }
        };
        *sum = _mm256_sll_epi32(minus, shift);
    }
    sums
}

/// Adds eight columns' products: with AVX-VNNI to the 32-bit sums, else to the 16-bit ones and, when
/// these are full, on to the others.
///
/// # Safety
/// As [`add_products`].
#[inline(always)]
unsafe fn add_pair<C: Codes, const VNNI: bool, const TOKENS: usize, const PAIR: usize>(
    codes: *const u8,
    block: Block,
    narrow: &mut [__m256i; TOKENS],
    sums: &mut [__m256i; TOKENS],
) {
    const { assert!(LINE == 2 * ROWS * QUAD) };
    // SAFETY: by the contract.
    unsafe {
        let (even, odd) = C::pair::<PAIR>(codes);
        let ones = _mm256_set1_epi16(1);
        let full = ((PAIR + 1) * 2).is_multiple_of(C::QUADS);
        for token in 0..TOKENS {
            let at = PAIR * 2 * QUAD;
            let x = [
                block.broadcast(token, at),
                block.broadcast(token, at + QUAD),
            ];
            let (narrow, sum) = (&mut narrow[token], &mut sums[token]);
            if VNNI {
                *sum = _mm256_dpbusd_avx_epi32(*sum, even, x[0]);
                *sum = _mm256_dpbusd_avx_epi32(*sum, odd, x[1]);
            } else if C::SIGNED {
                let products = [signed_products(even, x[0]), signed_products(odd, x[1])];
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(products[0], ones));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(products[1], ones));
            } else {
                *narrow = _mm256_add_epi16(*narrow, _mm256_maddubs_epi16(even, x[0]));
                *narrow = _mm256_add_epi16(*narrow, _mm256_maddubs_epi16(odd, x[1]));
                if full {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*narrow, ones));
                    *narrow = _mm256_setzero_si256();
                }
            }
        }
    }
}

/// Sums of two products of codes, of which 128 is taken off, and activations.
#[inline]
#[target_feature(enable = "avx2")]
fn signed_products(codes: __m256i, x: __m256i) -> __m256i {
    let codes = _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN));
    // |code| ≤ 128 and |x| ≤ 127: two products are at most 32,512.
    _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
}

/// Adds integer sums times both scales.
///
/// # Safety
/// AVX2 with FMA; `block` has `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_scaled<const TOKENS: usize>(
    scale: __m256,
    block: Block,
    sums: &[__m256i; TOKENS],
    accumulators: &mut [__m256; TOKENS],
) {
    for (token, (accumulator, sum)) in accumulators.iter_mut().zip(sums).enumerate() {
        // SAFETY: inside the group.
        let x = unsafe { block.broadcast(token, SCALE) };
        let factor = _mm256_mul_ps(scale, _mm256_castsi256_ps(x));
        *accumulator = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(*sum), *accumulator);
    }
}

/// Adds the minimums times the activations' scaled sums.
///
/// # Safety
/// AVX2 with FMA; `block` has `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_minimums<const TOKENS: usize>(
    minimums: __m256,
    block: Block,
    accumulators: &mut [__m256; TOKENS],
) {
    for (token, accumulator) in accumulators.iter_mut().enumerate() {
        // SAFETY: inside the group.
        let sum = unsafe { block.broadcast(token, SCALED_SUM) };
        *accumulator = _mm256_fmadd_ps(minimums, _mm256_castsi256_ps(sum), *accumulator);
    }
}
