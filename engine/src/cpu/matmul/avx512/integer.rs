//! Integer products: one panel by up to six tokens, or two by six, in registers.
//!
//! With two panels, what their codes are multiplied with is loaded once: broadcasts from memory, not
//! products, bound a kernel of one panel.

use std::arch::x86_64::*;

use super::super::format::{GROUP, LINE, QUAD, Scaling, Width};
use super::super::kernel::{IntegerTile, Lanes, Outputs};
use super::super::quantize::{BLOCK_BYTES, FINE_BASE, SCALED_SUMS, SCALES, SUMS, TILE_ROWS};
use super::codes::{Codes, Eight, Five, Four, Six};
use super::scales::{Minimum, Offset, Scales, SuperHalves, SuperMinimum};

/// Integer sums of a plane, by panel and token.
type Sums<const PANELS: usize, const TOKENS: usize> = [[__m512i; TOKENS]; PANELS];
/// Outputs so far, by panel and token.
type Accumulators<const PANELS: usize, const TOKENS: usize> = [[__m512; TOKENS]; PANELS];
/// Tokens of fine activations that two panels take at once: two planes need twice the registers.
const FINE_TOKENS: usize = TILE_ROWS / 2;

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
    // SAFETY: by the contract; lanes 0 and 3 of a full tile are followed by two more.
    unsafe {
        match (tile.panels, tokens, tile.fine) {
            (&[first, second], TILE_ROWS, false) => {
                panels_by_tokens::<C, S, 1, 2, TILE_ROWS>([first, second], tile, 0, out);
            }
            (&[first, second], TILE_ROWS, true) => {
                for token in [0, FINE_TOKENS] {
                    panels_by_tokens::<C, S, 2, 2, FINE_TOKENS>([first, second], tile, token, out);
                }
            }
            (panels, _, false) => {
                for (panel, out) in panels.iter().zip(out.chunks_exact_mut(1)) {
                    panel_by_tokens::<C, S, 1>(*panel, tile, tokens, out);
                }
            }
            (panels, _, true) => {
                for (panel, out) in panels.iter().zip(out.chunks_exact_mut(1)) {
                    panel_by_tokens::<C, S, 2>(*panel, tile, tokens, out);
                }
            }
        }
    }
}

/// # Safety
/// As [`integer`]; `panel` is one of the tile's.
unsafe fn panel_by_tokens<C: Codes, S: Scales, const PLANES: usize>(
    panel: *const u8,
    tile: &IntegerTile<'_>,
    tokens: usize,
    out: &mut [[Lanes; TILE_ROWS]],
) {
    let panel = [panel];
    // SAFETY: by the contract.
    unsafe {
        match tokens {
            1 => panels_by_tokens::<C, S, PLANES, 1, 1>(panel, tile, 0, out),
            2 => panels_by_tokens::<C, S, PLANES, 1, 2>(panel, tile, 0, out),
            3 => panels_by_tokens::<C, S, PLANES, 1, 3>(panel, tile, 0, out),
            4 => panels_by_tokens::<C, S, PLANES, 1, 4>(panel, tile, 0, out),
            5 => panels_by_tokens::<C, S, PLANES, 1, 5>(panel, tile, 0, out),
            _ => panels_by_tokens::<C, S, PLANES, 1, TILE_ROWS>(panel, tile, 0, out),
        }
    }
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
/// AVX-512 F; four readable bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast(at: *const u8) -> __m512i {
    // SAFETY: by the contract.
    _mm512_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

/// Outputs of `TOKENS` tokens from `first` on.
///
/// # Safety
/// As [`IntegerTile`] states for these panels, planes and tokens, and AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn panels_by_tokens<
    C: Codes,
    S: Scales,
    const PLANES: usize,
    const PANELS: usize,
    const TOKENS: usize,
>(
    panels: [*const u8; PANELS],
    tile: &IntegerTile<'_>,
    first: usize,
    out: &mut [[Lanes; TILE_ROWS]],
) {
    let halves = matches!(S::SCALING, Scaling::SuperHalves);
    let minimum = matches!(S::SCALING, Scaling::Minimum | Scaling::SuperMinimum);
    let mut accumulators = [[_mm512_setzero_ps(); TOKENS]; PANELS];
    for group in 0..tile.groups {
        let place = S::SCALING.place(C::WIDTH, group);
        let (mut codes, mut scales) = (panels, [_mm512_setzero_ps(); PANELS]);
        let mut seconds = scales;
        // SAFETY: `group` is one of the panels' groups; all offsets stay in it and in its blocks.
        unsafe {
            for (index, panel) in panels.into_iter().enumerate() {
                if tile.ahead != 0 {
                    let bytes = S::SCALING.entry_bytes() + C::WIDTH.tile_bytes();
                    fetch(panel.wrapping_add(place.scales + tile.ahead), bytes);
                }
                codes[index] = panel.add(place.codes);
                (scales[index], seconds[index]) = S::load(panel, place);
            }
            let block = tile.activations.add(group * PLANES * BLOCK_BYTES);
            let block = Block {
                codes: block.add(first * GROUP),
                scales: block.add(first * 4),
            };
            let mut sums = start::<S, PLANES, PANELS, TOKENS, 0>(block);
            add_pair::<C, PLANES, PANELS, TOKENS, 0>(codes, block, &mut sums);
            add_pair::<C, PLANES, PANELS, TOKENS, 1>(codes, block, &mut sums);
            if halves {
                scaled(scales, block, &sums, &mut accumulators);
                sums = start::<S, PLANES, PANELS, TOKENS, 1>(block);
            }
            add_pair::<C, PLANES, PANELS, TOKENS, 2>(codes, block, &mut sums);
            add_pair::<C, PLANES, PANELS, TOKENS, 3>(codes, block, &mut sums);
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
        for (lanes, accumulator) in out[first..].iter_mut().zip(accumulators) {
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
unsafe fn start<
    S: Scales,
    const PLANES: usize,
    const PANELS: usize,
    const TOKENS: usize,
    const HALF: usize,
>(
    block: Block,
) -> [Sums<PANELS, TOKENS>; PLANES] {
    let mut sums = [[[_mm512_setzero_si512(); TOKENS]; PANELS]; PLANES];
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
    for (plane, sums) in sums.iter_mut().enumerate() {
        for token in 0..TOKENS {
            // SAFETY: inside the block.
            let pair = unsafe { broadcast(block.plane(plane).scales.add(SUMS + token * 4)) };
            let sum = _mm512_dpwssd_epi32(_mm512_setzero_si512(), factors, pair);
            for sums in sums.iter_mut() {
                sums[token] = sum;
            }
        }
    }
    sums
}

/// Adds eight columns' products.
///
/// # Safety
/// AVX-512 VNNI; `codes` and `block` are a group's tiles and block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add_pair<
    C: Codes,
    const PLANES: usize,
    const PANELS: usize,
    const TOKENS: usize,
    const PAIR: usize,
>(
    codes: [*const u8; PANELS],
    block: Block,
    sums: &mut [Sums<PANELS, TOKENS>; PLANES],
) {
    let mut lines = [(_mm512_setzero_si512(), _mm512_setzero_si512()); PANELS];
    for (lines, codes) in lines.iter_mut().zip(codes) {
        // SAFETY: by the contract.
        *lines = unsafe { C::pair::<PAIR>(codes) };
    }
    for (plane, sums) in sums.iter_mut().enumerate() {
        for token in 0..TOKENS {
            // SAFETY: inside the block.
            let (even, odd) = unsafe {
                let at = block
                    .plane(plane)
                    .codes
                    .add(token * GROUP + PAIR * 2 * QUAD);
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
}

/// Adds integer sums times both scales.
///
/// # Safety
/// AVX-512 F; `block` is a group's block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn scaled<const PLANES: usize, const PANELS: usize, const TOKENS: usize>(
    scales: [__m512; PANELS],
    block: Block,
    sums: &[Sums<PANELS, TOKENS>; PLANES],
    accumulators: &mut Accumulators<PANELS, TOKENS>,
) {
    const { assert!(FINE_BASE == 255) };
    for token in 0..TOKENS {
        // SAFETY: inside the block.
        let x = _mm512_castsi512_ps(unsafe { broadcast(block.scales.add(SCALES + token * 4)) });
        for panel in 0..PANELS {
            let mut sum = sums[0][panel][token];
            if PLANES == 2 {
                let high = _mm512_sub_epi32(_mm512_slli_epi32::<8>(sum), sum);
                sum = _mm512_add_epi32(high, sums[1][panel][token]);
            }
            let accumulator = &mut accumulators[panel][token];
            let factor = _mm512_mul_ps(scales[panel], x);
            *accumulator = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(sum), *accumulator);
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
    block: Block,
    accumulators: &mut Accumulators<PANELS, TOKENS>,
) {
    for token in 0..TOKENS {
        // SAFETY: inside the block.
        let sum = unsafe { broadcast(block.scales.add(SCALED_SUMS + token * 4)) };
        let sum = _mm512_castsi512_ps(sum);
        for (minimum, accumulators) in minimums.iter().zip(accumulators.iter_mut()) {
            accumulators[token] = _mm512_fmadd_ps(*minimum, sum, accumulators[token]);
        }
    }
}
