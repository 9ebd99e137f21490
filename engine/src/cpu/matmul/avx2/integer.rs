//! Integer products: eight rows by a few tokens in registers.
//!
//! With AVX-VNNI a product of codes and activations is one instruction, as with AVX-512; without it
//! products go through 16-bit sums, which are widened before they can overflow.

use std::arch::x86_64::*;

use super::super::format::{GROUP, LINE, PANEL_ROWS, QUAD, Scaling, Width};
use super::super::kernel::{Strip, Tile};
use super::super::quantize::{FINE_BASE, MINUS_FIRST, MINUS_SUM, SCALE, SCALED_SUM, group_bytes};
use super::codes::{Codes, Eight, Five, Four, Six};
use super::scales::{Minimum, Offset, Scales, SuperHalves, SuperMinimum};

/// Rows of half a panel.
const ROWS: usize = PANEL_ROWS / 2;

/// Most tokens of a tile, without AVX-VNNI and with it: what sixteen registers hold.
const MOST: usize = 3;
const MOST_VNNI: usize = 5;

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
            (Width::Four, Scaling::Offset(_)) => by_planes::<Four, Offset<8>, VNNI>(strip),
            (Width::Four, Scaling::Minimum) => by_planes::<Four, Minimum, VNNI>(strip),
            (Width::Four, _) => by_planes::<Four, SuperMinimum, VNNI>(strip),
            (Width::Five, Scaling::Offset(_)) => by_planes::<Five, Offset<16>, VNNI>(strip),
            (Width::Five, Scaling::Minimum) => by_planes::<Five, Minimum, VNNI>(strip),
            (Width::Five, _) => by_planes::<Five, SuperMinimum, VNNI>(strip),
            (Width::Six, _) => by_planes::<Six, SuperHalves, VNNI>(strip),
            (Width::Eight, _) => by_planes::<Eight, Offset<128>, VNNI>(strip),
        }
    }
}

/// # Safety
/// As [`integer`].
unsafe fn by_planes<C: Codes, S: Scales, const VNNI: bool>(strip: &Strip) {
    // SAFETY: by the contract.
    unsafe {
        match (VNNI, strip.fine) {
            (false, false) => by_tokens::<C, S, 1>(strip),
            (false, true) => by_tokens::<C, S, 2>(strip),
            (true, false) => by_tokens_vnni::<C, S, 1>(strip),
            (true, true) => by_tokens_vnni::<C, S, 2>(strip),
        }
    }
}

/// # Safety
/// As [`integer`].
unsafe fn by_tokens<C: Codes, S: Scales, const PLANES: usize>(strip: &Strip) {
    for tile in strip.tiles(MOST, 1) {
        for row in [0, ROWS] {
            // SAFETY: by the contract.
            unsafe {
                match tile.tokens {
                    1 => rows_by_tokens::<C, S, PLANES, 1>(strip, tile, row),
                    2 => rows_by_tokens::<C, S, PLANES, 2>(strip, tile, row),
                    _ => rows_by_tokens::<C, S, PLANES, MOST>(strip, tile, row),
                }
            }
        }
    }
}

/// # Safety
/// As [`integer`], with AVX-VNNI.
unsafe fn by_tokens_vnni<C: Codes, S: Scales, const PLANES: usize>(strip: &Strip) {
    for tile in strip.tiles(if PLANES == 1 { MOST_VNNI } else { MOST }, 1) {
        for row in [0, ROWS] {
            // SAFETY: by the contract.
            unsafe {
                match tile.tokens {
                    1 => rows_by_tokens_vnni::<C, S, PLANES, 1>(strip, tile, row),
                    2 => rows_by_tokens_vnni::<C, S, PLANES, 2>(strip, tile, row),
                    3 => rows_by_tokens_vnni::<C, S, PLANES, 3>(strip, tile, row),
                    4 => rows_by_tokens_vnni::<C, S, 1, 4>(strip, tile, row),
                    _ => rows_by_tokens_vnni::<C, S, 1, MOST_VNNI>(strip, tile, row),
                }
            }
        }
    }
}

/// # Safety
/// As [`body`], and AVX2 with FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_by_tokens<C: Codes, S: Scales, const PLANES: usize, const TOKENS: usize>(
    strip: &Strip,
    tile: Tile,
    row: usize,
) {
    // SAFETY: by the contract.
    unsafe { body::<C, S, false, PLANES, TOKENS>(strip, tile, row) }
}

/// # Safety
/// As [`body`], and AVX2 with FMA, F16C and AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn rows_by_tokens_vnni<C: Codes, S: Scales, const PLANES: usize, const TOKENS: usize>(
    strip: &Strip,
    tile: Tile,
    row: usize,
) {
    // SAFETY: by the contract.
    unsafe { body::<C, S, true, PLANES, TOKENS>(strip, tile, row) }
}

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
/// As [`Strip`] states for `PLANES`; `tile` is a tile of `TOKENS` tokens; compiled with the features of
/// the unit.
#[inline(always)]
unsafe fn body<C: Codes, S: Scales, const VNNI: bool, const PLANES: usize, const TOKENS: usize>(
    strip: &Strip,
    tile: Tile,
    row: usize,
) {
    let halves = matches!(S::SCALING, Scaling::SuperHalves);
    let minimum = matches!(S::SCALING, Scaling::Minimum | Scaling::SuperMinimum);
    // SAFETY: groups below are the panel's and the rows'; all offsets stay in them.
    unsafe {
        let mut accumulators = [_mm256_setzero_ps(); TOKENS];
        for group in 0..strip.columns / GROUP {
            let place = S::SCALING.place(C::WIDTH, group);
            let codes = strip.panel.add(place.codes + row * QUAD);
            let (scale, second) = S::load(strip.panel, place, row);
            let block = Block {
                first: tile.activations.add(group * group_bytes(PLANES)),
                stride: strip.stride,
            };
            let mut sums = start::<C, S, VNNI, PLANES, TOKENS, 0>(block);
            let mut narrow = [[_mm256_setzero_si256(); TOKENS]; PLANES];
            add_pair::<C, VNNI, PLANES, TOKENS, 0>(codes, block, &mut narrow, &mut sums);
            add_pair::<C, VNNI, PLANES, TOKENS, 1>(codes, block, &mut narrow, &mut sums);
            if halves {
                add_scaled(scale, block, &sums, &mut accumulators);
                sums = start::<C, S, VNNI, PLANES, TOKENS, 1>(block);
            }
            add_pair::<C, VNNI, PLANES, TOKENS, 2>(codes, block, &mut narrow, &mut sums);
            add_pair::<C, VNNI, PLANES, TOKENS, 3>(codes, block, &mut narrow, &mut sums);
            let scale = if halves { second } else { scale };
            add_scaled(scale, block, &sums, &mut accumulators);
            if minimum {
                add_minimums(second, block, PLANES, &mut accumulators);
            }
        }
        for (token, accumulator) in accumulators.into_iter().enumerate() {
            let target = tile.out.add(token * strip.out_stride + row);
            _mm256_storeu_ps(target, accumulator);
        }
    }
}

/// Integer sums before any product: the last plane's hold the offset times minus the activations' sum.
///
/// # Safety
/// AVX2; `block` has `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn start<
    C: Codes,
    S: Scales,
    const VNNI: bool,
    const PLANES: usize,
    const TOKENS: usize,
    const HALF: usize,
>(
    block: Block,
) -> [[__m256i; TOKENS]; PLANES] {
    let mut sums = [[_mm256_setzero_si256(); TOKENS]; PLANES];
    let offset = S::SCALING.offset();
    if offset == 0 || (C::SIGNED && !VNNI) {
        return sums;
    }
    let shift = _mm_cvtsi32_si128(offset.trailing_zeros() as i32);
    for (token, sum) in sums[PLANES - 1].iter_mut().enumerate() {
        // SAFETY: inside the group.
        let minus = unsafe {
            let all = block.broadcast(token, PLANES * GROUP + MINUS_SUM);
            let first = block.broadcast(token, PLANES * GROUP + MINUS_FIRST);
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
/// AVX2 (and AVX-VNNI); `codes` and `block` point at a group's half tile and the same group of tokens.
#[inline(always)]
unsafe fn add_pair<
    C: Codes,
    const VNNI: bool,
    const PLANES: usize,
    const TOKENS: usize,
    const PAIR: usize,
>(
    codes: *const u8,
    block: Block,
    narrow: &mut [[__m256i; TOKENS]; PLANES],
    sums: &mut [[__m256i; TOKENS]; PLANES],
) {
    const { assert!(LINE == 2 * ROWS * QUAD) };
    // SAFETY: by the contract.
    unsafe {
        let (even, odd) = C::pair::<PAIR>(codes);
        let ones = _mm256_set1_epi16(1);
        let full = ((PAIR + 1) * 2).is_multiple_of(C::QUADS);
        for plane in 0..PLANES {
            for token in 0..TOKENS {
                let at = plane * GROUP + PAIR * 2 * QUAD;
                let x = [
                    block.broadcast(token, at),
                    block.broadcast(token, at + QUAD),
                ];
                let (narrow, sum) = (&mut narrow[plane][token], &mut sums[plane][token]);
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
unsafe fn add_scaled<const PLANES: usize, const TOKENS: usize>(
    scale: __m256,
    block: Block,
    sums: &[[__m256i; TOKENS]; PLANES],
    accumulators: &mut [__m256; TOKENS],
) {
    const { assert!(FINE_BASE == 255) };
    for (token, accumulator) in accumulators.iter_mut().enumerate() {
        let mut sum = sums[0][token];
        if PLANES == 2 {
            let high = _mm256_sub_epi32(_mm256_slli_epi32::<8>(sum), sum);
            sum = _mm256_add_epi32(high, sums[1][token]);
        }
        // SAFETY: inside the group.
        let x = unsafe { block.broadcast(token, PLANES * GROUP + SCALE) };
        let factor = _mm256_mul_ps(scale, _mm256_castsi256_ps(x));
        *accumulator = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(sum), *accumulator);
    }
}

/// Adds the minimums times the activations' scaled sums.
///
/// # Safety
/// AVX2 with FMA; `block` has `TOKENS` tokens of so many planes.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_minimums<const TOKENS: usize>(
    minimums: __m256,
    block: Block,
    planes: usize,
    accumulators: &mut [__m256; TOKENS],
) {
    for (token, accumulator) in accumulators.iter_mut().enumerate() {
        // SAFETY: inside the group.
        let sum = unsafe { block.broadcast(token, planes * GROUP + SCALED_SUM) };
        *accumulator = _mm256_fmadd_ps(minimums, _mm256_castsi256_ps(sum), *accumulator);
    }
}
