//! Integer products: sixteen rows by up to twelve tokens in registers.

use std::arch::x86_64::*;

use super::super::activations::{BLOCK_BYTES, SCALED_SUMS, SCALES, SUMS, TILE_ROWS};
use super::super::format::{GROUP, LINE, QUAD, Scaling, Width};
use super::super::kernel::{IntegerTile, Lanes, MAX_TOKENS};
use super::codes::{Codes, Eight, Five, Four, Six};
use super::scales::{Minimum, Offset, Scales, SuperHalves, SuperMinimum};

/// Token counts that have a kernel, largest first.
pub(in super::super) const TOKENS: [usize; 6] = [12, 8, 4, 3, 2, 1];

/// Tiles of activations that the most tokens span.
const TILES: usize = MAX_TOKENS.div_ceil(TILE_ROWS);

type Kernel = unsafe fn(&IntegerTile, &mut [Lanes; MAX_TOKENS]);

/// Runs one tile.
///
/// # Safety
/// As [`IntegerTile`] states, AVX-512 with VNNI, and `tokens` is one of [`TOKENS`].
pub(in super::super) unsafe fn integer(
    width: Width,
    scaling: Scaling,
    tile: &IntegerTile,
    tokens: usize,
    out: &mut [Lanes; MAX_TOKENS],
) {
    let kernel = match (width, scaling) {
        (Width::Four, Scaling::Offset(_)) => by_tokens::<Four, Offset<8>>(tokens),
        (Width::Four, Scaling::Minimum) => by_tokens::<Four, Minimum>(tokens),
        (Width::Four, _) => by_tokens::<Four, SuperMinimum>(tokens),
        (Width::Five, Scaling::Offset(_)) => by_tokens::<Five, Offset<16>>(tokens),
        (Width::Five, Scaling::Minimum) => by_tokens::<Five, Minimum>(tokens),
        (Width::Five, _) => by_tokens::<Five, SuperMinimum>(tokens),
        (Width::Six, _) => by_tokens::<Six, SuperHalves>(tokens),
        (Width::Eight, _) => by_tokens::<Eight, Offset<128>>(tokens),
    };
    // SAFETY: by this function's contract.
    unsafe { kernel(tile, out) }
}

fn by_tokens<C: Codes, S: Scales>(tokens: usize) -> Kernel {
    match tokens {
        1 => rows_by_tokens::<C, S, 1>,
        2 => rows_by_tokens::<C, S, 2>,
        3 => rows_by_tokens::<C, S, 3>,
        4 => rows_by_tokens::<C, S, 4>,
        8 => rows_by_tokens::<C, S, 8>,
        _ => rows_by_tokens::<C, S, MAX_TOKENS>,
    }
}

/// Four bytes of every lane from memory.
///
/// # Safety
/// AVX-512 F; four readable bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast(at: *const u8) -> __m512i {
    // SAFETY: by the contract.
    _mm512_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

/// A place in the block of `token`'s tile.
///
/// # Safety
/// `offset` is inside the block.
#[inline]
unsafe fn lane(tiles: &[*const u8; TILES], token: usize, offset: usize) -> *const u8 {
    // SAFETY: inside the block by the callers' contract.
    unsafe { tiles[token / TILE_ROWS].add(offset) }
}

/// # Safety
/// As [`IntegerTile`] states for `TOKENS` tokens, and AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn rows_by_tokens<C: Codes, S: Scales, const TOKENS: usize>(
    tile: &IntegerTile,
    out: &mut [Lanes; MAX_TOKENS],
) {
    let halves = matches!(S::SCALING, Scaling::SuperHalves);
    let minimum = matches!(S::SCALING, Scaling::Minimum | Scaling::SuperMinimum);
    let mut tiles = [tile.activations; TILES];
    for (index, pointer) in tiles
        .iter_mut()
        .enumerate()
        .take(TOKENS.div_ceil(TILE_ROWS))
    {
        // SAFETY: the tokens span this many tiles.
        *pointer = unsafe { tile.activations.add(index * tile.stride) };
    }
    let mut accumulators = [_mm512_setzero_ps(); TOKENS];
    for group in 0..tile.groups {
        // SAFETY: `group` is one of the panel's groups; all offsets stay in it and in its blocks.
        unsafe {
            let place = S::SCALING.place(C::WIDTH, group);
            let codes = tile.panel.add(place.codes);
            if tile.ahead != 0 {
                let bytes = S::SCALING.entry_bytes() + C::WIDTH.tile_bytes();
                for line in (0..bytes).step_by(LINE) {
                    let at = tile.panel.wrapping_add(place.scales + tile.ahead + line);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                }
            }
            let (scale, second) = S::load(tile.panel, place);
            let mut sums = start::<S, TOKENS, 0>(&tiles);
            add_pair::<C, TOKENS, 0>(codes, &tiles, &mut sums);
            add_pair::<C, TOKENS, 1>(codes, &tiles, &mut sums);
            if halves {
                scaled::<TOKENS>(scale, &tiles, &sums, &mut accumulators);
                sums = start::<S, TOKENS, 1>(&tiles);
            }
            add_pair::<C, TOKENS, 2>(codes, &tiles, &mut sums);
            add_pair::<C, TOKENS, 3>(codes, &tiles, &mut sums);
            scaled::<TOKENS>(
                if halves { second } else { scale },
                &tiles,
                &sums,
                &mut accumulators,
            );
            if minimum {
                for (token, accumulator) in accumulators.iter_mut().enumerate() {
                    let at = lane(&tiles, token, SCALED_SUMS + token % TILE_ROWS * 4);
                    let sum = _mm512_castsi512_ps(broadcast(at));
                    *accumulator = _mm512_fmadd_ps(second, sum, *accumulator);
                }
            }
            for pointer in &mut tiles {
                *pointer = pointer.wrapping_add(BLOCK_BYTES);
            }
        }
    }
    for (lanes, accumulator) in out.iter_mut().zip(accumulators) {
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(lanes.0.as_mut_ptr(), accumulator) };
    }
}

/// Integer sums before any product: minus the offset times the activations' sum.
///
/// # Safety
/// AVX-512 VNNI; `tiles` point at blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn start<S: Scales, const TOKENS: usize, const HALF: usize>(
    tiles: &[*const u8; TILES],
) -> [__m512i; TOKENS] {
    let mut sums = [_mm512_setzero_si512(); TOKENS];
    let offset = S::SCALING.offset();
    if offset == 0 {
        return sums;
    }
    // Pairs of 16-bit factors for the sums of the two halves: both, or the one half's.
    let minus = -offset & 0xffff;
    let factors = match (S::SCALING, HALF) {
        (Scaling::SuperHalves, 0) => minus,
        (Scaling::SuperHalves, _) => minus << 16,
        _ => minus | (minus << 16),
    };
    let factors = _mm512_set1_epi32(factors);
    for (token, sum) in sums.iter_mut().enumerate() {
        // SAFETY: inside the block.
        let pair = unsafe { broadcast(lane(tiles, token, SUMS + token % TILE_ROWS * 4)) };
        *sum = _mm512_dpwssd_epi32(*sum, factors, pair);
    }
    sums
}

/// Adds eight columns' products.
///
/// # Safety
/// AVX-512 VNNI; `codes` and `tiles` point at a group's tile and blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_pair<C: Codes, const TOKENS: usize, const PAIR: usize>(
    codes: *const u8,
    tiles: &[*const u8; TILES],
    sums: &mut [__m512i; TOKENS],
) {
    // SAFETY: by the contract.
    let (even, odd) = unsafe { C::pair::<PAIR>(codes) };
    for (token, sum) in sums.iter_mut().enumerate() {
        let at = token % TILE_ROWS * GROUP + PAIR * 2 * QUAD;
        // SAFETY: inside the block.
        unsafe {
            *sum = _mm512_dpbusd_epi32(*sum, even, broadcast(lane(tiles, token, at)));
            *sum = _mm512_dpbusd_epi32(*sum, odd, broadcast(lane(tiles, token, at + QUAD)));
        }
    }
}

/// Adds integer sums times both scales.
///
/// # Safety
/// AVX-512 F; `tiles` point at blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn scaled<const TOKENS: usize>(
    scale: __m512,
    tiles: &[*const u8; TILES],
    sums: &[__m512i; TOKENS],
    accumulators: &mut [__m512; TOKENS],
) {
    for (token, (sum, accumulator)) in sums.iter().zip(accumulators).enumerate() {
        // SAFETY: inside the block.
        let at = unsafe { broadcast(lane(tiles, token, SCALES + token % TILE_ROWS * 4)) };
        let factor = _mm512_mul_ps(scale, _mm512_castsi512_ps(at));
        *accumulator = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(*sum), *accumulator);
    }
}
