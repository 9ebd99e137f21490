//! Integer products: one panel by up to ten tokens in registers.
//!
//! What bounds a kernel is the pair of units that multiply: eight dot products, one product of scales
//! and one or two additions of scaled sums per token and group all go there. Decoding, conversions and
//! the broadcasts of activations fit beside them.

use std::arch::x86_64::*;

use super::super::format::{GROUP, QUAD, Scaling, Width};
use super::super::gangs::GANG;
use super::super::kernel::{GangList, Strip, Tile};
use super::super::quantize::{GROUP_BYTES, MINUS_FIRST, MINUS_SUM, SCALE, SCALED_SUM};
use super::codes::{Codes, Eight, Five, Four, Six};
use super::fetch::Fetch;
use super::scales::{Minimum, Offset, Scales, SuperHalves, SuperMinimum};

/// Most tokens of a tile: a sum and an accumulator each, and some of 32 registers for the codes.
const MOST: usize = 10;

/// Computes a strip.
///
/// # Safety
/// As [`Strip`] states, and AVX-512 with VNNI.
pub(in super::super) unsafe fn integer(width: Width, scaling: Scaling, strip: &Strip) {
    // SAFETY: by this function's contract.
    unsafe {
        match (width, scaling) {
            (Width::Four, Scaling::Offset(_)) => by_tokens::<Four, Offset<8>>(strip),
            (Width::Four, Scaling::Minimum) => by_tokens::<Four, Minimum>(strip),
            (Width::Four, _) => by_tokens::<Four, SuperMinimum>(strip),
            (Width::Five, Scaling::Offset(_)) => by_tokens::<Five, Offset<16>>(strip),
            (Width::Five, Scaling::Minimum) => by_tokens::<Five, Minimum>(strip),
            (Width::Five, _) => by_tokens::<Five, SuperMinimum>(strip),
            (Width::Six, _) => by_tokens::<Six, SuperHalves>(strip),
            (Width::Eight, _) => by_tokens::<Eight, Offset<128>>(strip),
        }
    }
}

/// # Safety
/// As [`integer`].
unsafe fn by_tokens<C: Codes, S: Scales>(strip: &Strip) {
    for tile in strip.tiles(MOST, strip.columns / GROUP) {
        // SAFETY: by the contract.
        unsafe {
            match tile.tokens {
                1 => panel_by_tokens::<C, S, 1>(strip, tile),
                2 => panel_by_tokens::<C, S, 2>(strip, tile),
                3 => panel_by_tokens::<C, S, 3>(strip, tile),
                4 => panel_by_tokens::<C, S, 4>(strip, tile),
                5 => panel_by_tokens::<C, S, 5>(strip, tile),
                6 => panel_by_tokens::<C, S, 6>(strip, tile),
                7 => panel_by_tokens::<C, S, 7>(strip, tile),
                8 => panel_by_tokens::<C, S, 8>(strip, tile),
                9 => panel_by_tokens::<C, S, 9>(strip, tile),
                _ => panel_by_tokens::<C, S, MOST>(strip, tile),
            }
        }
    }
    // SAFETY: by the contract; the list is of these tokens.
    unsafe {
        match strip.gangs {
            Some(list) if strip.tokens == 1 => add_listed_digits::<C, S, 1>(strip, list),
            Some(list) => add_listed_digits::<C, S, GANG>(strip, list),
            None => add_second_digits::<C, S>(strip),
        }
    }
}

/// The same group of several rows of activations.
trait Rows: Copy {
    /// Four bytes of a token, in every lane.
    ///
    /// # Safety
    /// AVX-512 F; the token has this group, and four bytes from `at` on are in it.
    unsafe fn broadcast(self, token: usize, at: usize) -> __m512i;
}

/// Rows at equal distances.
#[derive(Clone, Copy)]
struct Block {
    first: *const u8,
    stride: usize,
}

/// Rows anywhere.
#[derive(Clone, Copy)]
struct Scattered<const TOKENS: usize>([*const u8; TOKENS]);

impl<const TOKENS: usize> Rows for Scattered<TOKENS> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn broadcast(self, token: usize, at: usize) -> __m512i {
        // SAFETY: by the contract.
        unsafe { _mm512_set1_epi32(self.0[token].add(at).cast::<i32>().read_unaligned()) }
    }
}

impl Rows for Block {
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
/// As [`Strip`] states, and AVX-512 with VNNI; `tile` is a tile of `TOKENS` tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn panel_by_tokens<C: Codes, S: Scales, const TOKENS: usize>(strip: &Strip, tile: Tile) {
    let minimum = matches!(S::SCALING, Scaling::Minimum | Scaling::SuperMinimum);
    let (panel, stride, groups) = (strip.panel, strip.stride, strip.columns / GROUP);
    let mut fetch = Fetch::new(tile.ahead);
    let mut accumulators = [_mm512_setzero_ps(); TOKENS];
    for group in 0..groups {
        fetch.step();
        let place = S::SCALING.place(C::WIDTH, group);
        // SAFETY: `group` is one of the panel's and of the rows' groups; all offsets stay in it.
        unsafe {
            let scales = S::load(panel, place);
            let block = Block {
                first: tile.activations.add(group * GROUP_BYTES),
                stride,
            };
            let codes = panel.add(place.codes);
            add_products::<C, S, Block, TOKENS>(codes, scales, block, &mut accumulators);
            if minimum {
                for (token, accumulator) in accumulators.iter_mut().enumerate() {
                    let sum = _mm512_castsi512_ps(block.broadcast(token, SCALED_SUM));
                    *accumulator = _mm512_fmadd_ps(scales.1, sum, *accumulator);
                }
            }
        }
    }
    for (token, accumulator) in accumulators.into_iter().enumerate() {
        // SAFETY: sixteen outputs of each token, by the contract.
        unsafe { _mm512_storeu_ps(tile.out.add(token * strip.out_stride), accumulator) };
    }
}

/// Adds the products with second digits to the strip's outputs, several tokens at a time.
///
/// # Safety
/// As [`Strip`] states, and AVX-512 with VNNI; the outputs hold the rest; the list is of the strip's
/// tokens, whose gangs have at most `TOKENS` of them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_listed_digits<C: Codes, S: Scales, const TOKENS: usize>(
    strip: &Strip,
    list: GangList,
) {
    for at in 0..list.count {
        // SAFETY: the tokens have second digits in the group, and their outputs were written. A token that
        // stands in for missing ones gets the same sum several times.
        unsafe {
            let gang = &*list.first.add(at);
            let group = gang.group as usize;
            let place = S::SCALING.place(C::WIDTH, group);
            let scales = S::load(strip.panel, place);
            let codes = strip.panel.add(place.codes);
            let digits = strip.second.low + group * GROUP_BYTES;
            let mut rows = [strip.activations; TOKENS];
            let mut outputs = [strip.out; TOKENS];
            let mut accumulators = [_mm512_setzero_ps(); TOKENS];
            for (at, token) in gang.tokens.iter().enumerate().take(TOKENS) {
                let token = usize::from(*token);
                rows[at] = strip.activations.add(token * strip.stride + digits);
                outputs[at] = strip.out.add(token * strip.out_stride);
                accumulators[at] = _mm512_loadu_ps(outputs[at]);
            }
            add_products::<C, S, Scattered<TOKENS>, TOKENS>(
                codes,
                scales,
                Scattered(rows),
                &mut accumulators,
            );
            for (out, accumulator) in outputs.into_iter().zip(accumulators) {
                _mm512_storeu_ps(out, accumulator);
            }
        }
    }
}

/// Adds the products with second digits to the strip's outputs.
///
/// # Safety
/// As [`Strip`] states, and AVX-512 with VNNI; the outputs hold the rest.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_second_digits<C: Codes, S: Scales>(strip: &Strip) {
    for group in 0..strip.columns / GROUP {
        // SAFETY: one of the strip's groups.
        let mut marked = unsafe { strip.marked(group) };
        let Some(mut token) = marked.next() else {
            continue;
        };
        let place = S::SCALING.place(C::WIDTH, group);
        // SAFETY: the group has second digits in the token's row, and its outputs were written.
        unsafe {
            let codes = strip.panel.add(place.codes);
            let halves = [
                [C::pair::<0>(codes), C::pair::<1>(codes)],
                [C::pair::<2>(codes), C::pair::<3>(codes)],
            ];
            let scales = S::load(strip.panel, place);
            let row = strip
                .activations
                .add(strip.second.low + group * GROUP_BYTES);
            loop {
                let first = row.add(token * strip.stride);
                let block = Block { first, stride: 0 };
                let out = strip.out.add(token * strip.out_stride);
                let mut accumulator = [_mm512_loadu_ps(out)];
                add_token::<S>(&halves, scales, block, &mut accumulator);
                _mm512_storeu_ps(out, accumulator[0]);
                match marked.next() {
                    Some(next) => token = next,
                    None => break,
                }
            }
        }
    }
}

/// Adds the products of a group's lines with one token, scaled.
///
/// # Safety
/// AVX-512 VNNI; `block` is the same group of a token.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_token<S: Scales>(
    halves: &[[(__m512i, __m512i); 2]; 2],
    scales: (__m512, __m512),
    block: Block,
    accumulator: &mut [__m512; 1],
) {
    // SAFETY: by the contract.
    unsafe {
        let separate = matches!(S::SCALING, Scaling::SuperHalves);
        let mut sums = [start::<S, Block, 1, 0>(block), [_mm512_setzero_si512()]];
        if separate {
            sums[1] = start::<S, Block, 1, 1>(block);
        }
        for (half, (sums, lines)) in sums.iter_mut().zip(halves).enumerate() {
            for (pair, (even, odd)) in lines.iter().enumerate() {
                let at = (half * 2 + pair) * 2 * QUAD;
                let x = [block.broadcast(0, at), block.broadcast(0, at + QUAD)];
                sums[0] = _mm512_dpbusd_epi32(sums[0], *even, x[0]);
                sums[0] = _mm512_dpbusd_epi32(sums[0], *odd, x[1]);
            }
        }
        if separate {
            add_scaled(scales.0, block, &sums[0], accumulator);
            add_scaled(scales.1, block, &sums[1], accumulator);
        } else {
            let sum = [_mm512_add_epi32(sums[0][0], sums[1][0])];
            add_scaled(scales.0, block, &sum, accumulator);
        }
    }
}

/// Adds the products of a group's codes, scaled.
///
/// # Safety
/// AVX-512 VNNI; `codes` is a group's tile and `block` the same group of `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_products<C: Codes, S: Scales, R: Rows, const TOKENS: usize>(
    codes: *const u8,
    scales: (__m512, __m512),
    block: R,
    accumulators: &mut [__m512; TOKENS],
) {
    // SAFETY: by the contract.
    unsafe {
        let mut sums = start::<S, R, TOKENS, 0>(block);
        add_pair::<C, R, TOKENS, 0>(codes, block, &mut sums);
        add_pair::<C, R, TOKENS, 1>(codes, block, &mut sums);
        if matches!(S::SCALING, Scaling::SuperHalves) {
            add_scaled(scales.0, block, &sums, accumulators);
            sums = start::<S, R, TOKENS, 1>(block);
        }
        add_pair::<C, R, TOKENS, 2>(codes, block, &mut sums);
        add_pair::<C, R, TOKENS, 3>(codes, block, &mut sums);
        let scale = match S::SCALING {
            Scaling::SuperHalves => scales.1,
            _ => scales.0,
        };
        add_scaled(scale, block, &sums, accumulators);
    }
}

/// Integer sums before any product: the offset times minus the activations' sum.
///
/// # Safety
/// AVX-512 F; `block` has `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn start<S: Scales, R: Rows, const TOKENS: usize, const HALF: usize>(
    block: R,
) -> [__m512i; TOKENS] {
    let mut sums = [_mm512_setzero_si512(); TOKENS];
    let offset = S::SCALING.offset();
    if offset == 0 {
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
/// As [`add_products`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_pair<C: Codes, R: Rows, const TOKENS: usize, const PAIR: usize>(
    codes: *const u8,
    block: R,
    sums: &mut [__m512i; TOKENS],
) {
    // SAFETY: by the contract.
    let (even, odd) = unsafe { C::pair::<PAIR>(codes) };
    for (token, sum) in sums.iter_mut().enumerate() {
        let at = PAIR * 2 * QUAD;
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

/// Adds integer sums times both scales.
///
/// # Safety
/// AVX-512 F; `block` has `TOKENS` tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_scaled<R: Rows, const TOKENS: usize>(
    scale: __m512,
    block: R,
    sums: &[__m512i; TOKENS],
    accumulators: &mut [__m512; TOKENS],
) {
    for (token, (accumulator, sum)) in accumulators.iter_mut().zip(sums).enumerate() {
        // SAFETY: inside the group.
        let x = unsafe { block.broadcast(token, SCALE) };
        let factor = _mm512_mul_ps(scale, _mm512_castsi512_ps(x));
        *accumulator = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(*sum), *accumulator);
    }
}
