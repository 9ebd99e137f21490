//! The step between a product and an instruction set: one panel by a run of tokens.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use super::format::{Format, LINE};
use super::gangs::Gang;
use super::portable;
use super::quantize::MARKED_ROWS;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::Isa;

/// One panel of weights by the rows of some tokens.
///
/// Kernels trust that the panel has `columns` columns in the format they are called for, that
/// `activations` are rows of as many columns in that format's form, for integers with marks, and that
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
    /// Number of the first token's row, for integer activations.
    pub(super) first_row: usize,
    pub(super) second: SecondDigits,
    /// First output of the first token.
    pub(super) out: *mut f32,
    /// Outputs from one token to the next.
    pub(super) out_stride: usize,
    /// What to fetch into the cache meanwhile: where it starts, and its bytes.
    pub(super) ahead: (*const u8, usize),
    /// All tokens that have second digits, if there is a list of them.
    pub(super) gangs: Option<GangList>,
}

/// Where a list of [`Gangs`] is. It outlives the strip.
#[derive(Debug, Clone, Copy)]
pub(super) struct GangList {
    pub(super) first: *const Gang,
    pub(super) count: usize,
}

/// Where integer activations have second digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct SecondDigits {
    /// Bytes from a row's first to its second digits.
    pub(super) low: usize,
    /// Marks of row 0 and its neighbours: a word for each group.
    pub(super) marks: *const AtomicU64,
    /// Words from one neighbourhood to the next.
    pub(super) stride: usize,
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

impl Strip {
    /// The tokens that have a second digit in `group`.
    ///
    /// # Safety
    /// As [`Strip`] states; `group` is one of its groups.
    #[inline]
    pub(super) unsafe fn marked(&self, group: usize) -> Marked {
        let rows = self.first_row..self.first_row + self.tokens;
        // SAFETY: by the contract.
        unsafe { self.second.marked(rows, group) }
    }
}

impl SecondDigits {
    /// The rows, from the first of `rows` on, that have a second digit in `group`.
    ///
    /// # Safety
    /// The rows exist and have the group.
    #[inline]
    pub(super) unsafe fn marked(&self, rows: Range<usize>, group: usize) -> Marked {
        let block = rows.start / MARKED_ROWS;
        let words = block * self.stride + group;
        // SAFETY: rows of this block and group are marked, by the contract.
        let mut marked = Marked {
            word: unsafe { self.marks.add(words) },
            stride: self.stride,
            bits: 0,
            first: rows.start,
            row: block * MARKED_ROWS,
            end: rows.end,
        };
        marked.bits = marked.load() & (u64::MAX << (rows.start % MARKED_ROWS));
        marked
    }
}

/// Tokens of a strip that are marked in a group.
pub(super) struct Marked {
    word: *const AtomicU64,
    stride: usize,
    bits: u64,
    /// First row of the strip.
    first: usize,
    /// Row of the word's first bit.
    row: usize,
    end: usize,
}

impl Marked {
    /// The word's bits of rows before the end.
    #[inline]
    fn load(&self) -> u64 {
        // SAFETY: the word marks a row of the strip: it holds `row`, which is below `end`.
        let bits = unsafe { &*self.word }.load(Ordering::Relaxed);
        match self.end - self.row {
            rest @ 0..MARKED_ROWS => bits & ((1 << rest) - 1),
            _ => bits,
        }
    }
}

impl Iterator for Marked {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            self.row += MARKED_ROWS;
            if self.row >= self.end {
                return None;
            }
            self.word = self.word.wrapping_add(self.stride);
            self.bits = self.load();
        }
        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(self.row + bit - self.first)
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
