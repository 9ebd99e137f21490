//! Parts of a row's attention: a span of positions has its own maximum and sums, and the parts are
//! joined in the order of positions.
//!
//! Because spans are where they are whoever computes them, a long row can be divided among threads
//! without changing a bit. Which thread computes which is not decided here.

use super::rows::RowState;
use crate::cpu::lanes::{LANES, Lanes, lanes_kernel};

/// Positions of a span, a multiple of a tile.
pub(super) const SPAN: usize = 512;

/// Spans that a row at `position` sees.
pub(crate) const fn spans(position: usize) -> usize {
    position / SPAN + 1
}

/// Values of one row's part: `width` sums, then the totals, then the largest score.
pub(crate) const fn part_values(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES) + 2 * LANES
}

/// Parts of some rows, one after the other.
pub(super) struct Parts {
    values: Vec<f32>,
    head_dim: usize,
}

impl Parts {
    pub(super) fn new(rows: usize, head_dim: usize) -> Self {
        Self {
            values: vec![0.0; rows * part_values(head_dim)],
            head_dim,
        }
    }

    /// Rows that fit.
    pub(super) fn rows(&self) -> usize {
        self.values.len() / part_values(self.head_dim)
    }

    /// Part of `row`, and of those after it.
    pub(super) fn row(&mut self, row: usize) -> *mut f32 {
        let values = part_values(self.head_dim);
        assert!((row + 1) * values <= self.values.len());
        // SAFETY: in bounds.
        unsafe { self.values.as_mut_ptr().add(row * values) }
    }

    /// Begins `rows` rows anew.
    pub(super) fn begin(&mut self, rows: usize) {
        self.values[..rows * part_values(self.head_dim)].fill(0.0);
        for row in 0..rows {
            // SAFETY: the row's part.
            *unsafe { state(self.row(row), self.head_dim) }.largest = f32::NEG_INFINITY;
        }
    }
}

/// A part as what a tile is added to.
///
/// # Safety
/// `part` points to [`part_values`] values that nobody else uses for as long as the state lives.
#[inline(always)]
pub(super) unsafe fn state<'a>(part: *mut f32, head_dim: usize) -> RowState<'a> {
    let width = head_dim.next_multiple_of(LANES);
    // SAFETY: by the contract.
    unsafe {
        RowState {
            largest: &mut *part.add(width + LANES),
            totals: part.add(width),
            sums: part,
            width,
        }
    }
}

/// Joins `next`, which is about later positions, to `part`.
///
/// # Safety
/// Both point to [`part_values`] values; nobody else uses `part` or writes `next` meanwhile.
#[inline(always)]
pub(super) unsafe fn join<V: Lanes>(part: *mut f32, next: *const f32, head_dim: usize) {
    // SAFETY: by the contract; `next` is only read.
    unsafe {
        let (part, next) = (state(part, head_dim), state(next.cast_mut(), head_dim));
        let (ours, theirs) = (*part.largest, *next.largest);
        let largest = if ours > theirs { ours } else { theirs };
        let ours = V::splat(ours - largest).exp2();
        let theirs = V::splat(theirs - largest).exp2();
        *part.largest = largest;
        // Totals lie behind the sums.
        for at in (0..part.width + LANES).step_by(LANES) {
            let sums = V::load(part.sums.add(at)).mul(ours);
            V::load(next.sums.add(at))
                .fma(theirs, sums)
                .store(part.sums.add(at));
        }
    }
}

/// Writes a row's result.
///
/// # Safety
/// `part` points to [`part_values`] values, `out` to `head_dim` writable ones.
#[inline(always)]
pub(super) unsafe fn finish<V: Lanes>(part: *const f32, head_dim: usize, out: *mut f32) {
    // SAFETY: by the contract.
    unsafe {
        let width = head_dim.next_multiple_of(LANES);
        let total = V::splat(V::load(part.add(width)).sum());
        let mut column = 0;
        while column + LANES <= head_dim {
            V::load(part.add(column)).div(total).store(out.add(column));
            column += LANES;
        }
        if column < head_dim {
            let mut last = [0.0; LANES];
            V::load(part.add(column))
                .div(total)
                .store(last.as_mut_ptr());
            out.add(column)
                .copy_from_nonoverlapping(last.as_ptr(), head_dim - column);
        }
    }
}

lanes_kernel! {
    /// Joins the `count` parts of one row, `stride` values apart, and writes its result.
    ///
    /// # Safety
    /// `parts` points to as many parts of [`part_values`] values, which nobody else uses, `out` to
    /// `head_dim` writable values; the instruction set is available.
    pub(crate) unsafe fn join_all(parts: *mut f32, stride: usize, count: usize, head_dim: usize, out: *mut f32)
        = join_all_body
}

#[inline(always)]
unsafe fn join_all_body<V: Lanes>(
    parts: *mut f32,
    stride: usize,
    count: usize,
    head_dim: usize,
    out: *mut f32,
) {
    // SAFETY: by the contract.
    unsafe {
        for part in 1..count {
            join::<V>(parts, parts.add(part * stride), head_dim);
        }
        finish::<V>(parts, head_dim, out);
    }
}
