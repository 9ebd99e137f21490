//! Integer products: one panel by up to ten tokens in registers.
//!
//! What bounds a kernel is the pair of units that multiply: eight dot products, one product of scales
//! and one or two additions of scaled sums per token and group all go there. Decoding, conversions and
//! the broadcasts of activations fit beside them.

use std::arch::x86_64::*;

use super::super::format::{GROUP, QUAD, Scaling, Width};
use super::super::kernel::{Strip, Tile};
use super::super::quantize::{FINE_BASE, MINUS_FIRST, MINUS_SUM, SCALE, SCALED_SUM, group_bytes};
use super::codes::{Codes, Eight, Five, Four, Six};
use super::fetch::Fetch;
use super::scales::{Minimum, Offset, Scales, SuperHalves, SuperMinimum};

/// Most tokens of a tile, by planes: an accumulator each, a sum for each plane, and what is left of 32
/// registers for the codes.
const MOST: [usize; 3] = [0, 10, 8];

/// Integer sums by plane and token.
type Sums<const PLANES: usize, const TOKENS: usize> = [[__m512i; TOKENS]; PLANES];

/// Computes a strip.
///
/// # Safety
/// As [`Strip`] states, and AVX-512 with VNNI.
pub(in super::super) unsafe fn integer(width: Width, scaling: Scaling, strip: &Strip) {
    // SAFETY: by this function's contract.
    unsafe {
        match (width, scaling) {
            (Width::Four, Scaling::Offset(_)) => by_planes::<Four, Offset<8>>(strip),
            (Width::Four, Scaling::Minimum) => by_planes::<Four, Minimum>(strip),
            (Width::Four, _) => by_planes::<Four, SuperMinimum>(strip),
            (Width::Five, Scaling::Offset(_)) => by_planes::<Five, Offset<16>>(strip),
            (Width::Five, Scaling::Minimum) => by_planes::<Five, Minimum>(strip),
            (Width::Five, _) => by_planes::<Five, SuperMinimum>(strip),
            (Width::Six, _) => by_planes::<Six, SuperHalves>(strip),
            (Width::Eight, _) => by_planes::<Eight, Offset<128>>(strip),
        }
    }
}

/// # Safety
/// As [`integer`].
unsafe fn by_planes<C: Codes, S: Scales>(strip: &Strip) {
    // SAFETY: by the contract.
    unsafe {
        if strip.fine {
            by_tokens::<C, S, 2>(strip);
        } else {
            by_tokens::<C, S, 1>(strip);
        }
    }
}

/// # Safety
/// As [`integer`].
unsafe fn by_tokens<C: Codes, S: Scales, const PLANES: usize>(strip: &Strip) {
    for tile in strip.tiles(MOST[PLANES], strip.columns / GROUP) {
        // SAFETY: by the contract.
        unsafe {
            match tile.tokens {
                1 => panel_by_tokens::<C, S, PLANES, 1>(strip, tile),
                2 => panel_by_tokens::<C, S, PLANES, 2>(strip, tile),
                3 => panel_by_tokens::<C, S, PLANES, 3>(strip, tile),
                4 => panel_by_tokens::<C, S, PLANES, 4>(strip, tile),
                5 => panel_by_tokens::<C, S, PLANES, 5>(strip, tile),
                6 => panel_by_tokens::<C, S, PLANES, 6>(strip, tile),
                7 => panel_by_tokens::<C, S, PLANES, 7>(strip, tile),
                8 => panel_by_tokens::<C, S, PLANES, 8>(strip, tile),
                9 => panel_by_tokens::<C, S, 1, 9>(strip, tile),
                _ => panel_by_tokens::<C, S, 1, 10>(strip, tile),
            }
        }
    }
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
    /// AVX-512 F; the token has this group, and four bytes from `at` on are in it.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn broadcast(self, token: usize, at: usize) -> __m512i {
        // Every third row has a pointer of its own, from which two more are reached by index.
        // SAFETY: by the contract.
        unsafe {
            let third = self.first.add(token / 3 * (3 * self.stride));
            let value = third.add(token % 3 * self.stride + at).cast::<i32>();
            _mm512_set1_epi32(value.read_unaligned())
        }
    }
}

/// # Safety
/// As [`Strip`] states for `PLANES`, and AVX-512 with VNNI; `tile` is a tile of `TOKENS` tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn panel_by_tokens<C: Codes, S: Scales, const PLANES: usize, const TOKENS: usize>(
    strip: &Strip,
    tile: Tile,
) {
    let halves = matches!(S::SCALING, Scaling::SuperHalves);
    let minimum = matches!(S::SCALING, Scaling::Minimum | Scaling::SuperMinimum);
    let (panel, stride, groups) = (strip.panel, strip.stride, strip.columns / GROUP);
    let mut fetch = Fetch::new(tile.ahead);
    let mut accumulators = [_mm512_setzero_ps(); TOKENS];
    for group in 0..groups {
        fetch.step();
        let place = S::SCALING.place(C::WIDTH, group);
        // SAFETY: `group` is one of the panel's and of the rows' groups; all offsets stay in it.
        unsafe {
            let codes = panel.add(place.codes);
            let (scale, second) = S::load(panel, place);
            let block = Block {
                first: tile.activations.add(group * group_bytes(PLANES)),
                stride,
            };
            let mut sums = start::<S, PLANES, TOKENS, 0>(block);
            add_pair::<C, PLANES, TOKENS, 0>(codes, block, &mut sums);
            add_pair::<C, PLANES, TOKENS, 1>(codes, block, &mut sums);
            if halves {
                add_scaled(scale, block, &sums, &mut accumulators);
                sums = start::<S, PLANES, TOKENS, 1>(block);
            }
            add_pair::<C, PLANES, TOKENS, 2>(codes, block, &mut sums);
            add_pair::<C, PLANES, TOKENS, 3>(codes, block, &mut sums);
            let scale = if halves { second } else { scale };
            add_scaled(scale, block, &sums, &mut accumulators);
            if minimum {
                for (token, accumulator) in accumulators.iter_mut().enumerate() {
                    let sum = block.broadcast(token, PLANES * GROUP + SCALED_SUM);
                    *accumulator = _mm512_fmadd_ps(second, _mm512_castsi512_ps(sum), *accumulator);
                }
            }
        }
    }
    for (token, accumulator) in accumulators.into_iter().enumerate() {
        // SAFETY: sixteen outputs of each token, by the contract.
        unsafe { _mm512_storeu_ps(tile.out.add(token * strip.out_stride), accumulator) };
    }
}

/// Integer sums before any product: the last plane's hold the offset times minus the activations' sum.
///
/// # Safety
/// AVX-512 F; `block` has `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn start<S: Scales, const PLANES: usize, const TOKENS: usize, const HALF: usize>(
    block: Block,
) -> Sums<PLANES, TOKENS> {
    let mut sums = [[_mm512_setzero_si512(); TOKENS]; PLANES];
    let offset = S::SCALING.offset();
    if offset == 0 {
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
                (Scaling::SuperHalves, _) => _mm512_sub_epi32(all, first),
                _ => all,
            }
        };
        *sum = _mm512_sll_epi32(minus, shift);
    }
    sums
}

/// Adds eight columns' products.
///
/// # Safety
/// AVX-512 VNNI; `codes` is a group's tile and `block` the same group of `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_pair<C: Codes, const PLANES: usize, const TOKENS: usize, const PAIR: usize>(
    codes: *const u8,
    block: Block,
    sums: &mut Sums<PLANES, TOKENS>,
) {
    // SAFETY: by the contract.
    let (even, odd) = unsafe { C::pair::<PAIR>(codes) };
    for (plane, sums) in sums.iter_mut().enumerate() {
        for (token, sum) in sums.iter_mut().enumerate() {
            let at = plane * GROUP + PAIR * 2 * QUAD;
            // SAFETY: inside the group.
            let x = unsafe {
                [
                    block.broadcast(token, at),
                    block.broadcast(token, at + QUAD),
                ]
            };
            *sum = _mm512_dpbusd_epi32(*sum, even, x[0]);
            *sum = _mm512_dpbusd_epi32(*sum, odd, x[1]);
        }
    }
}

/// Adds integer sums times both scales.
///
/// # Safety
/// AVX-512 F; `block` has `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_scaled<const PLANES: usize, const TOKENS: usize>(
    scale: __m512,
    block: Block,
    sums: &Sums<PLANES, TOKENS>,
    accumulators: &mut [__m512; TOKENS],
) {
    const { assert!(FINE_BASE == 255) };
    for (token, accumulator) in accumulators.iter_mut().enumerate() {
        let mut sum = sums[0][token];
        if PLANES == 2 {
            let high = _mm512_sub_epi32(_mm512_slli_epi32::<8>(sum), sum);
            sum = _mm512_add_epi32(high, sums[1][token]);
        }
        // SAFETY: inside the group.
        let x = unsafe { block.broadcast(token, PLANES * GROUP + SCALE) };
        let factor = _mm512_mul_ps(scale, _mm512_castsi512_ps(x));
        *accumulator = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(sum), *accumulator);
    }
}
