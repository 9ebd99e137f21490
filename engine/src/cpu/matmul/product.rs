//! The product: panels by tiles of tokens, within a range of output rows.

use std::marker::PhantomData;
use std::ops::Range;

use super::activations::Activations;
use super::format::{Format, GROUP, PANEL_ROWS};
use super::kernel::{self, FloatTile, IntegerTile, Lanes, Outputs, PANELS};
use super::packed::{PackedMatrix, Segment};
use super::quantize::TILE_ROWS;
use crate::Isa;

/// Most tokens that pass all panels together.
const RUN_TOKENS: usize = 16 * TILE_ROWS;
/// Most bytes of activations that pass all panels together: they and two panels stay in the second-level
/// cache.
const RUN_BYTES: usize = 448 << 10;

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
    let run_tokens = run_tokens(Activations::tile_bytes(weights.form(), weights.columns()));
    for segment in weights.segments() {
        let start = output_rows.start.max(segment.rows.start);
        let end = output_rows.end.min(segment.rows.end);
        if start >= end {
            continue;
        }
        for first in (0..tokens).step_by(run_tokens) {
            let run = first..tokens.min(first + run_tokens);
            // SAFETY: ranges checked above; the rest by this function's contract.
            unsafe { run_segment(isa, weights, segment, x, run, start..end, out) };
        }
    }
}

/// Tokens of a run, whole tiles.
fn run_tokens(tile_bytes: usize) -> usize {
    (RUN_BYTES / tile_bytes * TILE_ROWS).clamp(TILE_ROWS, RUN_TOKENS)
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
    let first_panel = (rows.start - segment.rows.start) / PANEL_ROWS;
    let end_panel = (rows.end - segment.rows.start).div_ceil(PANEL_ROWS);
    let mut lanes = [[Lanes([0.0; PANEL_ROWS]); TILE_ROWS]; PANELS];
    // Few tokens are bound by reading the weights, which is fastest in one stream; for many, two panels
    // share the loads of activations.
    let together = if tokens.len() < 2 * TILE_ROWS {
        1
    } else {
        PANELS
    };
    for first in (first_panel..end_panel).step_by(together) {
        let count = together.min(end_panel - first);
        // SAFETY: panels of this segment; a second one only where there is one.
        let panels = unsafe {
            [
                weights.panel(segment, first),
                weights.panel(segment, first + count - 1),
            ]
        };
        for token in tokens.clone().step_by(TILE_ROWS) {
            // The first tile of tokens fetches what comes two panels later while it computes.
            let first_tile = token == tokens.start;
            let ahead = if first_tile {
                PANELS * segment.panel_bytes
            } else {
                0
            };
            let tokens = token..tokens.end.min(token + TILE_ROWS);
            let operands = Operands {
                weights,
                x,
                panels: &panels[..count],
                ahead,
            };
            // SAFETY: panels in this format; the run starts at a tile.
            unsafe { run_tile(isa, segment.format, operands, tokens.clone(), &mut lanes) };
            for (panel, lanes) in (first..first + count).zip(&lanes) {
                let start = segment.rows.start + panel * PANEL_ROWS;
                let wanted = rows.start.max(start)..rows.end.min(start + PANEL_ROWS);
                for (token, lanes) in tokens.clone().zip(lanes) {
                    // SAFETY: `token` and `wanted` are inside the view and this caller's alone.
                    unsafe {
                        let target = out.base.add(token * out.row_stride + wanted.start);
                        if wanted.len() == PANEL_ROWS {
                            // Of known length: a few moves, not a call.
                            target.cast::<[f32; PANEL_ROWS]>().write_unaligned(lanes.0);
                        } else {
                            let values = &lanes.0[wanted.start - start..wanted.end - start];
                            target.copy_from_nonoverlapping(values.as_ptr(), values.len());
                        }
                    }
                }
            }
        }
    }
}

/// What a tile reads.
#[derive(Clone, Copy)]
struct Operands<'a> {
    weights: &'a PackedMatrix,
    x: &'a Activations,
    panels: &'a [*const u8],
    ahead: usize,
}

/// # Safety
/// `panels` are of the matrix, in this format; `tokens` are in one tile from its start on and hold
/// activations of the matrix's columns; the instruction set is available.
unsafe fn run_tile(
    isa: Isa,
    format: Format,
    operands: Operands<'_>,
    tokens: Range<usize>,
    lanes: &mut Outputs,
) {
    let Operands {
        weights,
        x,
        panels,
        ahead,
    } = operands;
    let (columns, tile) = (weights.columns(), tokens.start / TILE_ROWS);
    // SAFETY: by the contract.
    unsafe {
        if let Format::Integer(..) = format {
            let (groups, activations) = (columns / GROUP, x.integer_tile(tile));
            let fine = weights.form().fine;
            let operands = IntegerTile {
                panels,
                groups,
                activations,
                fine,
                ahead,
            };
            kernel::integer(isa, format, &operands, tokens.len(), lanes);
        } else {
            let activations = x.float_tile(tile);
            let operands = FloatTile {
                panels,
                columns,
                activations,
                ahead,
            };
            kernel::float(isa, format, &operands, tokens.len(), lanes);
        }
    }
}
