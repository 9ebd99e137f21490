//! The step between a product and an instruction set: one tile of sixteen output rows by a few tokens.

use super::activations::TILE_ROWS;
use super::format::{Format, PANEL_ROWS, Scaling};
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::Isa;

/// Most tokens of a tile, over all instruction sets.
pub(super) const MAX_TOKENS: usize = 12;

/// Sixteen outputs of one token.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub(super) [f32; PANEL_ROWS]);

/// Operands of an integer tile.
///
/// Kernels trust that `panel` has `groups` groups in the format they are called for, and that `activations` is a tile of four rows with as many blocks, followed at
/// multiples of `stride` bytes by as many tiles as the tokens need.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntegerTile {
    pub(super) panel: *const u8,
    pub(super) groups: usize,
    pub(super) activations: *const u8,
    pub(super) stride: usize,
    /// Bytes ahead of what is read to fetch into the cache; 0: none.
    pub(super) ahead: usize,
}

/// Operands of a float tile.
///
/// Kernels trust that `panel` has `columns` columns in the type they are called for, and
/// that `activations` is a tile of four rows of as many columns, followed at multiples of `stride`
/// values by as many tiles as the tokens need.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloatTile {
    pub(super) panel: *const u8,
    pub(super) columns: usize,
    pub(super) activations: *const f32,
    pub(super) stride: usize,
}

/// Tokens of the next tile when `left` (at least one) are left.
pub(super) fn tile_tokens(isa: Isa, format: Format, left: usize) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => {
            // Scales per half group need registers of their own.
            let halves = matches!(format, Format::Integer(_, Scaling::SuperHalves));
            let most = left.min(if halves { 8 } else { MAX_TOKENS });
            avx512::TOKENS
                .into_iter()
                .find(|tokens| *tokens <= most)
                .unwrap_or(1)
        }
        _ => left.min(TILE_ROWS),
    }
}

/// Runs one integer tile: `out[token]` for `tokens` as [`tile_tokens`] gave them.
///
/// # Safety
/// As [`IntegerTile`] states, and the instruction set is available.
pub(super) unsafe fn integer(
    isa: Isa,
    format: Format,
    tile: &IntegerTile,
    tokens: usize,
    out: &mut [Lanes; MAX_TOKENS],
) {
    let Format::Integer(width, scaling) = format else {
        return;
    };
    match isa {
        // SAFETY: by this function's contract, as in all arms.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512::integer(width, scaling, tile, tokens, out) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::integer(width, scaling, tile, tokens, out) },
        _ => unsafe { portable::integer(width, scaling, tile, tokens, out) },
    }
}

/// Runs one float tile.
///
/// # Safety
/// As [`FloatTile`] states, and the instruction set is available.
pub(super) unsafe fn float(
    isa: Isa,
    format: Format,
    tile: &FloatTile,
    tokens: usize,
    out: &mut [Lanes; MAX_TOKENS],
) {
    let Format::Float(float) = format else { return };
    match isa {
        // SAFETY: by this function's contract, as in all arms.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512::float(float, tile, tokens, out) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::float(float, tile, tokens, out) },
        _ => unsafe { portable::float(float, tile, tokens, out) },
    }
}
