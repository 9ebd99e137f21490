//! Integer products: one panel by up to six tokens, or two by six, in registers.
//!
//! With two panels, what their codes are multiplied with is loaded once: broadcasts from memory, not
//! products, bound a kernel of one panel.

use std::arch::x86_64::*;

use super::super::activations::{BLOCK_BYTES, SCALED_SUMS, SCALES, SUMS, TILE_ROWS};
use super::super::format::{GROUP, LINE, QUAD, Scaling, Width};
use super::super::kernel::{IntegerTile, Lanes, Outputs};
use super::codes::{Codes, Eight, Five, Four, Six};
use super::scales::{Minimum, Offset, Scales, SuperHalves, SuperMinimum};

/// Integer sums, by panel and token.
type Sums<const PANELS: usize, const TOKENS: usize> = [[__m512i; TOKENS]; PANELS];
/// Outputs so far, by panel and token.
type Accumulators<const PANELS: usize, const TOKENS: usize> = [[__m512; TOKENS]; PANELS];

/// Runs one tile.
///
/// # Safety
/// As [`IntegerTile`] states, AVX-512 with VNNI, and `tokens` is 1 to [`TILE_ROWS`].
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
            (Width::Four, Scaling::Offset(_)) => by_shape::<Four, Offset<8>>(tile, tokens, out),
            (Width::Four, Scaling::Minimum) => by_shape::<Four, Minimum>(tile, tokens, out),
            (Width::Four, _) => by_shape::<Four, SuperMinimum>(tile, tokens, out),
            (Width::Five, Scaling::Offset(_)) => by_shape::<Five, Offset<16>>(tile, tokens, out),
            (Width::Five, Scaling::Minimum) => by_shape::<Five, Minimum>(tile, tokens, out),
            (Width::Five, _) => by_shape::<Five, SuperMinimum>(tile, tokens, out),
            (Width::Six, _) => by_shape::<Six, SuperHalves>(tile, tokens, out),
            (Width::Eight, _) => by_shape::<Eight, Offset<128>>(tile, tokens, out),
        }
    }
}

/// # Safety
/// As [`integer`].
unsafe fn by_shape<C: Codes, S: Scales>(tile: &IntegerTile<'_>, tokens: usize, out: &mut Outputs) {
    // SAFETY: by the contract.
    unsafe {
        if let (&[first, second], TILE_ROWS) = (tile.panels, tokens) {
            return panels_by_tokens::<C, S, 2, TILE_ROWS>([first, second], tile, out);
        }
        for (panel, out) in tile.panels.iter().zip(out.chunks_exact_mut(1)) {
            let panel = [*panel];
            match tokens {
                1 => panels_by_tokens::<C, S, 1, 1>(panel, tile, out),
                2 => panels_by_tokens::<C, S, 1, 2>(panel, tile, out),
                3 => panels_by_tokens::<C, S, 1, 3>(panel, tile, out),
                4 => panels_by_tokens::<C, S, 1, 4>(panel, tile, out),
                5 => panels_by_tokens::<C, S, 1, 5>(panel, tile, out),
                _ => panels_by_tokens::<C, S, 1, TILE_ROWS>(panel, tile, out),
            }
        }
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

/// # Safety
/// As [`IntegerTile`] states for these panels and `TOKENS` tokens, and AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn panels_by_tokens<C: Codes, S: Scales, const PANELS: usize, const TOKENS: usize>(
    panels: [*const u8; PANELS],
    tile: &IntegerTile<'_>,
    out: &mut [[Lanes; TILE_ROWS]],
) {
    let halves = matches!(S::SCALING, Scaling::SuperHalves);
    let minimum = matches!(S::SCALING, Scaling::Minimum | Scaling::SuperMinimum);
    let mut accumulators = [[_mm512_setzero_ps(); TOKENS]; PANELS];
    for group in 0..tile.groups {
        let place = S::SCALING.place(C::WIDTH, group);
        let (mut codes, mut scales) = (panels, [_mm512_setzero_ps(); PANELS]);
        let mut seconds = scales;
        // SAFETY: `group` is one of the panels' groups; all offsets stay in it and in its block.
        unsafe {
            for (index, panel) in panels.into_iter().enumerate() {
                if tile.ahead != 0 {
                    let bytes = S::SCALING.entry_bytes() + C::WIDTH.tile_bytes();
                    fetch(panel.wrapping_add(place.scales + tile.ahead), bytes);
                }
                codes[index] = panel.add(place.codes);
                (scales[index], seconds[index]) = S::load(panel, place);
            }
            let block = tile.activations.add(group * BLOCK_BYTES);
            let mut sums = start::<S, PANELS, TOKENS, 0>(block);
            add_pair::<C, PANELS, TOKENS, 0>(codes, block, &mut sums);
            add_pair::<C, PANELS, TOKENS, 1>(codes, block, &mut sums);
            if halves {
                scaled(scales, block, &sums, &mut accumulators);
                sums = start::<S, PANELS, TOKENS, 1>(block);
            }
            add_pair::<C, PANELS, TOKENS, 2>(codes, block, &mut sums);
            add_pair::<C, PANELS, TOKENS, 3>(codes, block, &mut sums);
            scaled(
                if halves { seconds } else { scales },
                block,
                &sums,
                &mut accumulators,
            );
            if minimum {
                add_minimums(seconds, block, &mut accumulators);
            }
        }
    }
    for (out, accumulators) in out.iter_mut().zip(accumulators) {
        for (lanes, accumulator) in out.iter_mut().zip(accumulators) {
            // SAFETY: sixteen floats.
            unsafe { _mm512_storeu_ps(lanes.0.as_mut_ptr(), accumulator) };
        }
    }
}

/// Asks for the lines of the next `bytes` bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch(from: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast());
    }
}

/// Integer sums before any product: minus the offset times the activations' sum.
///
/// # Safety
/// AVX-512 VNNI; `block` is a group's block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn start<S: Scales, const PANELS: usize, const TOKENS: usize, const HALF: usize>(
    block: *const u8,
) -> Sums<PANELS, TOKENS> {
    let mut sums = [_mm512_setzero_si512(); TOKENS];
    let offset = S::SCALING.offset();
    if offset == 0 {
        return [sums; PANELS];
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
        let pair = unsafe { broadcast(block.add(SUMS + token * 4)) };
        *sum = _mm512_dpwssd_epi32(*sum, factors, pair);
    }
    [sums; PANELS]
}

/// Adds eight columns' products.
///
/// # Safety
/// AVX-512 VNNI; `codes` and `block` are a group's tiles and block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_pair<C: Codes, const PANELS: usize, const TOKENS: usize, const PAIR: usize>(
    codes: [*const u8; PANELS],
    block: *const u8,
    sums: &mut Sums<PANELS, TOKENS>,
) {
    let mut lines = [(_mm512_setzero_si512(), _mm512_setzero_si512()); PANELS];
    for (lines, codes) in lines.iter_mut().zip(codes) {
        // SAFETY: by the contract.
        *lines = unsafe { C::pair::<PAIR>(codes) };
    }
    for token in 0..TOKENS {
        // SAFETY: inside the block.
        let (even, odd) = unsafe {
            let at = block.add(token * GROUP + PAIR * 2 * QUAD);
            (broadcast(at), broadcast(at.add(QUAD)))
        };
        for (sums, lines) in sums.iter_mut().zip(lines) {
            sums[token] = _mm512_dpbusd_epi32(sums[token], lines.0, even);
        }
        for (sums, lines) in sums.iter_mut().zip(lines) {
            sums[token] = _mm512_dpbusd_epi32(sums[token], lines.1, odd);
        }
    }
}

/// Adds integer sums times both scales.
///
/// # Safety
/// AVX-512 F; `block` is a group's block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn scaled<const PANELS: usize, const TOKENS: usize>(
    scales: [__m512; PANELS],
    block: *const u8,
    sums: &Sums<PANELS, TOKENS>,
    accumulators: &mut Accumulators<PANELS, TOKENS>,
) {
    for token in 0..TOKENS {
        // SAFETY: inside the block.
        let x = _mm512_castsi512_ps(unsafe { broadcast(block.add(SCALES + token * 4)) });
        for panel in 0..PANELS {
            let accumulator = &mut accumulators[panel][token];
            let sum = _mm512_cvtepi32_ps(sums[panel][token]);
            *accumulator = _mm512_fmadd_ps(_mm512_mul_ps(scales[panel], x), sum, *accumulator);
        }
    }
}

/// Adds the minimums times the activations' scaled sums.
///
/// # Safety
/// AVX-512 F; `block` is a group's block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_minimums<const PANELS: usize, const TOKENS: usize>(
    minimums: [__m512; PANELS],
    block: *const u8,
    accumulators: &mut Accumulators<PANELS, TOKENS>,
) {
    for token in 0..TOKENS {
        // SAFETY: inside the block.
        let sum = _mm512_castsi512_ps(unsafe { broadcast(block.add(SCALED_SUMS + token * 4)) });
        for (minimum, accumulators) in minimums.iter().zip(accumulators.iter_mut()) {
            accumulators[token] = _mm512_fmadd_ps(*minimum, sum, accumulators[token]);
        }
    }
}
