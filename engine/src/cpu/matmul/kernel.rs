//! The step between a product and an instruction set: one or two panels by one tile of tokens.

use super::format::{Format, PANEL_ROWS};
use super::portable;
use super::quantize::TILE_ROWS;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::Isa;

/// Most panels of a tile.
pub(super) const PANELS: usize = 2;

/// Sixteen outputs of one token.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub(super) [f32; PANEL_ROWS]);

/// Outputs of a tile, by panel and token.
pub(super) type Outputs = [[Lanes; TILE_ROWS]; PANELS];

/// Operands of an integer tile.
///
/// Kernels trust that all `panels` (at most [`PANELS`]) have `groups` groups in the format they are
/// called for, and that `activations` is a tile of as many blocks (`fine`: pairs of blocks).
#[derive(Debug, Clone, Copy)]
pub(super) struct IntegerTile<'a> {
    pub(super) panels: &'a [*const u8],
    pub(super) groups: usize,
    pub(super) activations: *const u8,
    /// Whether activations have two planes.
    pub(super) fine: bool,
    /// Bytes ahead of what is read to fetch into the cache; 0: none.
    pub(super) ahead: usize,
}

/// Operands of a float tile.
///
/// Kernels trust that all `panels` (at most [`PANELS`]) have `columns` columns in the type they are
/// called for, and that `activations` is a tile of as many columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloatTile<'a> {
    pub(super) panels: &'a [*const u8],
    pub(super) columns: usize,
    pub(super) activations: *const f32,
    /// Bytes ahead of what is read to fetch into the cache; 0: none.
    pub(super) ahead: usize,
}

/// Runs one integer tile: `out[panel][token]` for the first `tokens` of the tile.
///
/// # Safety
/// As [`IntegerTile`] states, and the instruction set is available.
pub(super) unsafe fn integer(
    isa: Isa,
    format: Format,
    tile: &IntegerTile<'_>,
    tokens: usize,
    out: &mut Outputs,
) {
    let Format::Integer(width, scaling) = format else {
        return;
    };
    match isa {
        // SAFETY: by this function's contract, as in all arms.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe {
            avx512::integer(width, scaling, tile, tokens, out);
        },
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
    tile: &FloatTile<'_>,
    tokens: usize,
    out: &mut Outputs,
) {
    let Format::Float(float) = format else { return };
    match isa {
        // SAFETY: by this function's contract, as in all arms.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512::float(float, tile, tokens, out) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::float(float, tile, tokens, out) },
        _ => unsafe { portable::float(float, tile, tokens, out) },
    }
}
