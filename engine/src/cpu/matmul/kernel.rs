//! The step between a product and an instruction set: one panel by a run of tokens.

use super::format::{Format, LINE};
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::Isa;

/// One panel of weights by the rows of some tokens.
///
/// Kernels trust that the panel has `columns` columns in the format they are called for, that
/// `activations` are rows of as many columns in that format's form (`fine`: of two planes), and that
/// [`PANEL_ROWS`](super::format::PANEL_ROWS) outputs of each token may be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strip {
    pub(super) panel: *const u8,
    pub(super) columns: usize,
    /// Row of the first token.
    pub(super) activations: *const u8,
    /// Bytes from one token's row to the next.
    pub(super) stride: usize,
    pub(super) tokens: usize,
    /// Whether integer activations have two planes.
    pub(super) fine: bool,
    /// First output of the first token.
    pub(super) out: *mut f32,
    /// Outputs from one token to the next.
    pub(super) out_stride: usize,
    /// What to fetch into the cache meanwhile: where it starts, and its bytes.
    pub(super) ahead: (*const u8, usize),
}

/// Some tokens of a strip that a kernel holds in registers together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile {
    pub(super) activations: *const u8,
    pub(super) out: *mut f32,
    pub(super) tokens: usize,
    pub(super) ahead: Ahead,
}

/// Lines to fetch at each step (group or column) of a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    pub(super) next: *const u8,
    pub(super) lines: usize,
}

impl Strip {
    /// Tiles of about equal size, none above `most` tokens; each fetches its share of what is ahead in
    /// `steps` steps.
    pub(super) fn tiles(self, most: usize, steps: usize) -> impl Iterator<Item = Tile> {
        let count = self.tokens.div_ceil(most);
        let lines = self.ahead.1.div_ceil(LINE);
        let per_step = lines.div_ceil((count * steps).max(1));
        let edge = move |tile: usize| self.tokens * tile / count;
        (0..count).map(move |tile| {
            let (first, fetched) = (edge(tile), tile * steps * per_step);
            let tokens = edge(tile + 1) - first;
            // Rows and outputs of this strip, by its contract; what is fetched is never read.
            let (activations, out) = (
                self.activations.wrapping_add(first * self.stride),
                self.out.wrapping_add(first * self.out_stride),
            );
            Tile {
                activations,
                out,
                tokens,
                ahead: Ahead {
                    next: self.ahead.0.wrapping_add(fetched * LINE),
                    lines: if fetched < lines { per_step } else { 0 },
                },
            }
        })
    }
}

/// Computes an integer strip.
///
/// # Safety
/// As [`Strip`] states, and the instruction set is available.
pub(super) unsafe fn integer(isa: Isa, format: Format, strip: &Strip) {
    let Format::Integer(width, scaling) = format else {
        return;
    };
    match isa {
        // SAFETY: by this function's contract, as in all arms.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512::integer(width, scaling, strip) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Vnni => unsafe { avx2::integer::<true>(width, scaling, strip) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::integer::<false>(width, scaling, strip) },
        _ => unsafe { portable::integer(width, scaling, strip) },
    }
}

/// Computes a float strip.
///
/// # Safety
/// As [`Strip`] states, and the instruction set is available.
pub(super) unsafe fn float(isa: Isa, format: Format, strip: &Strip) {
    let Format::Float(float) = format else { return };
    match isa {
        // SAFETY: by this function's contract, as in all arms.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512::float(float, strip) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => unsafe { avx2::float(float, strip) },
        _ => unsafe { portable::float(float, strip) },
    }
}
