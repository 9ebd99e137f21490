//! The product: panels by tiles of tokens, within a range of output rows.

use std::marker::PhantomData;
use std::ops::Range;

use super::activations::{Activations, TILE_ROWS};
use super::format::{Format, GROUP, PANEL_ROWS};
use super::kernel::{self, FloatTile, IntegerTile, Lanes, MAX_TOKENS};
use super::packed::{PackedMatrix, Segment};
use crate::Isa;

/// Tokens whose activations stay in the second-level cache while all panels pass.
const TOKEN_RUN: usize = 8 * MAX_TOKENS;

/// Where outputs go: `base[token * row_stride + output_row]`. Several threads may hold copies and write
/// disjoint places.
#[derive(Debug, Clone, Copy)]
pub struct OutputView<'a> {
    base: *mut f32,
    row_stride: usize,
    rows: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: only a pointer; `matmul`'s contract says who writes where.
unsafe impl Send for OutputView<'_> {}
// SAFETY: as above.
unsafe impl Sync for OutputView<'_> {}

impl<'a> OutputView<'a> {
    /// `rows` tokens, `row_stride` values apart.
    ///
    /// # Safety
    /// `base` is valid for writes of `rows × row_stride` values for `'a`.
    pub unsafe fn new(base: *mut f32, row_stride: usize, rows: usize) -> Self {
        Self {
            base,
            row_stride,
            rows,
            lifetime: PhantomData,
        }
    }

    /// A view of a whole slice.
    pub fn of(values: &'a mut [f32], row_stride: usize) -> Self {
        let rows = values.len().checked_div(row_stride).unwrap_or(0);
        Self {
            base: values.as_mut_ptr(),
            row_stride,
            rows,
            lifetime: PhantomData,
        }
    }
}

/// Writes outputs `output_rows` of activation rows `0..tokens` (row `t` of `x` is token `t`).
///
/// Any range of output rows gives the same bits; multiples of [`super::ROW_TILE`] waste no work.
///
/// # Safety
/// While this runs no other thread reads or writes these outputs or writes these rows of `x`; the rows
/// have been quantised to `weights.columns()` columns in `weights.form()`.
///
/// # Panics
/// If a range exceeds its object or the instruction set is not available.
pub unsafe fn matmul(
    isa: Isa,
    weights: &PackedMatrix,
    x: &Activations,
    tokens: usize,
    output_rows: Range<usize>,
    out: OutputView<'_>,
) {
    assert!(Isa::available().contains(&isa), "{isa:?} on this machine");
    assert!(
        tokens <= x.max_rows() && tokens <= out.rows,
        "{tokens} tokens of {}",
        out.rows
    );
    assert!(
        output_rows.end <= weights.rows(),
        "row {} of {}",
        output_rows.end,
        weights.rows()
    );
    assert!(
        output_rows.end <= out.row_stride,
        "row {} of {}",
        output_rows.end,
        out.row_stride
    );
    assert!(
        weights.columns() <= x.max_columns(),
        "{} columns",
        weights.columns()
    );
    assert!(
        x.holds(weights.form()),
        "activations in {:?}",
        weights.form()
    );
    for segment in weights.segments() {
        let start = output_rows.start.max(segment.rows.start);
        let end = output_rows.end.min(segment.rows.end);
        if start >= end {
            continue;
        }
        for first in (0..tokens).step_by(TOKEN_RUN) {
            let run = first..tokens.min(first + TOKEN_RUN);
            // SAFETY: ranges checked above; the rest by this function's contract.
            unsafe { run_segment(isa, weights, segment, x, run, start..end, out) };
        }
    }
}

/// One run of tokens through the panels of `rows` of a segment.
///
/// # Safety
/// As [`matmul`], with ranges checked; `tokens` starts at a tile.
unsafe fn run_segment(
    isa: Isa,
    weights: &PackedMatrix,
    segment: &Segment,
    x: &Activations,
    tokens: Range<usize>,
    rows: Range<usize>,
    out: OutputView<'_>,
) {
    let local = rows.start - segment.rows.start..rows.end - segment.rows.start;
    let mut lanes = [Lanes([0.0; PANEL_ROWS]); MAX_TOKENS];
    for index in local.start / PANEL_ROWS..local.end.div_ceil(PANEL_ROWS) {
        // SAFETY: a panel of this segment.
        let panel = unsafe { weights.panel(segment, index) };
        let first_row = segment.rows.start + index * PANEL_ROWS;
        let wanted = rows.start.max(first_row)..rows.end.min(first_row + PANEL_ROWS);
        let mut token = tokens.start;
        while token < tokens.end {
            let count = kernel::tile_tokens(isa, segment.format, tokens.end - token);
            // The first tile of tokens fetches the next panel while it computes with this one.
            let ahead = if token == tokens.start {
                segment.panel_bytes
            } else {
                0
            };
            let operands = Operands {
                weights,
                x,
                panel,
                token,
                ahead,
            };
            // SAFETY: a panel in this format; `token` is a multiple of the tile.
            unsafe { run_tile(isa, segment.format, operands, count, &mut lanes) };
            for (lanes, token) in lanes[..count].iter().zip(token..) {
                let values = &lanes.0[wanted.start - first_row..wanted.end - first_row];
                // SAFETY: `token` and `wanted` are inside the view and this caller's alone.
                unsafe {
                    let target = out.base.add(token * out.row_stride + wanted.start);
                    target.copy_from_nonoverlapping(values.as_ptr(), values.len());
                }
            }
            token += count;
        }
    }
}

/// What a tile reads.
#[derive(Clone, Copy)]
struct Operands<'a> {
    weights: &'a PackedMatrix,
    x: &'a Activations,
    panel: *const u8,
    token: usize,
    ahead: usize,
}

/// # Safety
/// `panel` is one of the matrix in this format; `count` tokens from `token` (a multiple of the tile) on
/// are activations of its columns; the instruction set is available.
unsafe fn run_tile(
    isa: Isa,
    format: Format,
    operands: Operands<'_>,
    count: usize,
    lanes: &mut [Lanes; MAX_TOKENS],
) {
    let Operands {
        weights,
        x,
        panel,
        token,
        ahead,
    } = operands;
    let columns = weights.columns();
    // SAFETY: by the contract.
    unsafe {
        if let Format::Integer(..) = format {
            let activations = x.integer_tile(token / TILE_ROWS);
            let (groups, stride) = (columns / GROUP, x.integer_stride());
            let tile = IntegerTile {
                panel,
                groups,
                activations,
                stride,
                ahead,
            };
            kernel::integer(isa, format, &tile, count, lanes);
        } else {
            let activations = x.float_tile(token / TILE_ROWS);
            let stride = x.float_stride();
            let tile = FloatTile {
                panel,
                columns,
                activations,
                stride,
            };
            kernel::float(isa, format, &tile, count, lanes);
        }
    }
}
