//! The product: panels by runs of tokens, within a range of output rows.

use std::{marker::PhantomData, mem::MaybeUninit, ops::Range, slice};

use super::activations::Activations;
use super::format::{Format, GROUP, PANEL_ROWS};
use super::gangs::Gangs;
use super::kernel::{self, GangList, Strip};
use super::packed::{PackedMatrix, Segment};
use crate::{Isa, cpu::elementwise::gate};

/// Most bytes of activations that pass all panels together: they, some panels and outputs stay in the
/// second-level cache.
const RUN_BYTES: usize = 192 << 10;
/// Panels between what a kernel reads and what it fetches.
const PANELS_AHEAD: usize = 2;
/// Tokens whose outputs of a pair are gated together: they stay in the first cache beside both panels.
const PAIR_TOKENS: usize = 128;
/// Most tokens whose second digits are listed once for all panels: with more, a panel's own search is
/// small beside its products.
const LISTED_TOKENS: usize = 8;
/// Tokens whose outputs of a cut panel are computed together, aside.
const ASIDE_TOKENS: usize = 16;

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
/// Any range of output rows gives the same bits; multiples of [`super::ROW_TILE`] waste no work. Outputs
/// of a pair are silu(first) · second; their range is whole tiles but for the end of the matrix, and the
/// last tile is written whole.
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
    check(isa, weights, x, tokens, &output_rows, out);
    let mut gangs = Gangs::new();
    let groups = weights.columns() / GROUP;
    let mut list = |run: &Range<usize>| {
        if !weights.form().integer || run.len() > LISTED_TOKENS {
            return None;
        }
        // SAFETY: rows of the activations, which are not written now, by this function's contract.
        unsafe { gangs.fill(x.second_digits(), run.clone(), groups) }
    };
    let runs =
        (tokens * Activations::row_bytes(weights.form(), weights.columns())).div_ceil(RUN_BYTES);
    if let Some(pair) = weights.pair() {
        for run in 0..runs {
            let run = tokens * run / runs..tokens * (run + 1) / runs;
            // SAFETY: ranges checked above; the rest by this function's contract.
            unsafe {
                run_pair(
                    isa,
                    weights,
                    pair,
                    x,
                    (run.clone(), list(&run)),
                    output_rows.clone(),
                    out,
                );
            }
        }
        return;
    }
    for segment in weights.segments() {
        let start = output_rows.start.max(segment.rows.start);
        let end = output_rows.end.min(segment.rows.end);
        if start >= end {
            continue;
        }
        for run in 0..runs {
            let run = tokens * run / runs..tokens * (run + 1) / runs;
            // SAFETY: ranges checked above; the rest by this function's contract.
            unsafe {
                run_segment(
                    isa,
                    weights,
                    segment,
                    x,
                    (run.clone(), list(&run)),
                    start..end,
                    out,
                );
            }
        }
    }
}

/// # Panics
/// As [`matmul`] says.
fn check(
    isa: Isa,
    weights: &PackedMatrix,
    x: &Activations,
    tokens: usize,
    output_rows: &Range<usize>,
    out: OutputView<'_>,
) {
    assert!(Isa::available().contains(&isa), "{isa:?} on this machine");
    assert!(
        tokens <= x.max_rows() && tokens <= out.rows,
        "{tokens} tokens of {}",
        out.rows
    );
    assert!(
        output_rows.end <= weights.outputs(),
        "row {} of {}",
        output_rows.end,
        weights.outputs()
    );
    let written = match weights.pair() {
        Some(_) => output_rows.end.next_multiple_of(PANEL_ROWS),
        None => output_rows.end,
    };
    assert!(
        written <= out.row_stride,
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
}

/// One run of tokens through the panels of `rows` of a segment.
///
/// # Safety
/// As [`matmul`], with ranges checked.
unsafe fn run_segment(
    isa: Isa,
    weights: &PackedMatrix,
    segment: &Segment,
    x: &Activations,
    (tokens, gangs): (Range<usize>, Option<GangList>),
    rows: Range<usize>,
    out: OutputView<'_>,
) {
    let first_panel = (rows.start - segment.rows.start) / PANEL_ROWS;
    let end_panel = (rows.end - segment.rows.start).div_ceil(PANEL_ROWS);
    // SAFETY: rows of the activations; the form is held.
    let (activations, stride) = unsafe { x.rows_from(segment.format, tokens.start) };
    for panel in first_panel..end_panel {
        let start = segment.rows.start + panel * PANEL_ROWS;
        let wanted = rows.start.max(start)..rows.end.min(start + PANEL_ROWS);
        // SAFETY: a panel of this segment, and outputs inside the view.
        let (panel, target) = unsafe {
            (
                weights.panel(segment, panel),
                out.base.add(tokens.start * out.row_stride + wanted.start),
            )
        };
        let ahead = panel.wrapping_add(PANELS_AHEAD * segment.stride);
        let strip = Strip {
            panel,
            columns: weights.columns(),
            activations,
            stride,
            tokens: tokens.len(),
            first_row: tokens.start,
            second: x.second_digits(),
            out: target,
            out_stride: out.row_stride,
            ahead: (ahead, segment.panel_bytes),
            gangs,
        };
        // SAFETY: a strip of the matrix in this format, whose outputs are this caller's alone.
        unsafe {
            if wanted.len() == PANEL_ROWS {
                run_strip(isa, segment.format, &strip);
            } else {
                let lanes = wanted.start - start..wanted.end - start;
                run_cut_strip(isa, segment.format, &strip, lanes);
            }
        }
    }
}

/// One run of tokens through the panels of both matrices of a pair, gated while they are in the first
/// cache.
///
/// # Safety
/// As [`matmul`], with ranges checked.
unsafe fn run_pair(
    isa: Isa,
    weights: &PackedMatrix,
    pair: &[Segment],
    x: &Activations,
    (tokens, gangs): (Range<usize>, Option<GangList>),
    rows: Range<usize>,
    out: OutputView<'_>,
) {
    assert!(rows.start.is_multiple_of(PANEL_ROWS), "row {}", rows.start);
    let mut aside = MaybeUninit::<[[[f32; PANEL_ROWS]; PAIR_TOKENS]; 2]>::uninit();
    let aside = aside
        .as_mut_ptr()
        .cast::<[[f32; PANEL_ROWS]; PAIR_TOKENS]>();
    for first in tokens.clone().step_by(PAIR_TOKENS) {
        let count = PAIR_TOKENS.min(tokens.end - first);
        for panel in rows.start / PANEL_ROWS..rows.end.div_ceil(PANEL_ROWS) {
            for (part, segment) in pair.iter().enumerate() {
                // SAFETY: a panel of this segment and rows of the activations; the form is held.
                let (panel, (activations, stride)) = unsafe {
                    (
                        weights.panel(segment, panel),
                        x.rows_from(segment.format, first),
                    )
                };
                let fetched = if first == tokens.start {
                    segment.panel_bytes
                } else {
                    0
                };
                let strip = Strip {
                    panel,
                    columns: weights.columns(),
                    activations,
                    stride,
                    tokens: count,
                    first_row: first,
                    second: x.second_digits(),
                    out: aside.wrapping_add(part).cast(),
                    out_stride: PANEL_ROWS,
                    ahead: (panel.wrapping_add(PANELS_AHEAD * segment.stride), fetched),
                    gangs,
                };
                // SAFETY: a strip of the matrix in this format, and room for its outputs aside.
                unsafe { run_strip(isa, segment.format, &strip) };
            }
            // SAFETY: both strips have written these tokens' values aside; whole tiles of the tokens are
            // this caller's alone and inside the view.
            unsafe {
                let [gates, ups] =
                    [0, 1].map(|part| slice::from_raw_parts(aside.add(part).cast(), count));
                let target = out.base.add(first * out.row_stride + panel * PANEL_ROWS);
                gate(isa, gates, ups, target, out.row_stride);
            }
        }
    }
}

/// # Safety
/// As [`kernel::integer`].
unsafe fn run_strip(isa: Isa, format: Format, strip: &Strip) {
    // SAFETY: by the contract.
    unsafe {
        match format {
            Format::Integer(..) => kernel::integer(isa, format, strip),
            Format::Float(_) => kernel::float(isa, format, strip),
        }
    }
}

/// As [`run_strip`], with only `lanes` of each token written, the first of them to `strip.out`.
///
/// # Safety
/// As there, except that only these lanes may be written.
unsafe fn run_cut_strip(isa: Isa, format: Format, strip: &Strip, lanes: Range<usize>) {
    let mut aside = [[0.0_f32; PANEL_ROWS]; ASIDE_TOKENS];
    for first in (0..strip.tokens).step_by(ASIDE_TOKENS) {
        let tokens = ASIDE_TOKENS.min(strip.tokens - first);
        // SAFETY: these tokens' rows, room for their outputs, and their lanes in the caller's view.
        unsafe {
            let part = Strip {
                activations: strip.activations.add(first * strip.stride),
                first_row: strip.first_row + first,
                tokens,
                out: aside.as_mut_ptr().cast(),
                out_stride: PANEL_ROWS,
                gangs: None,
                ..*strip
            };
            run_strip(isa, format, &part);
            for (token, values) in aside[..tokens].iter().enumerate() {
                let target = strip.out.add((first + token) * strip.out_stride);
                let values = &values[lanes.clone()];
                target.copy_from_nonoverlapping(values.as_ptr(), values.len());
            }
        }
    }
}
