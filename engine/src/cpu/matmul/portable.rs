//! Kernels in plain Rust: the definition of every output's bits.
//!
//! For integer weights, groups in ascending order:
//! `acc = fma(scale_w × scale_x, Σ (code − offset) × x, acc)`, the sum exact in integers (per half group
//! where scales are) and then rounded to f32 (which only shows for fine activations), then, where the type has a minimum, `acc = fma(minimum, scale_x × Σ x, acc)`.
//! For float weights two chains, one of even and one of odd columns, `acc = fma(w, x, acc)`, added at
//! the end. The kernels of an instruction set must give the same bits.

use super::format::{Float, GROUP, LINE, PANEL_ROWS, QUAD, Scaling, TILE_CODES, Width};
use super::kernel::{FloatTile, IntegerTile, Lanes, Outputs};
use super::quantize::{BLOCK_BYTES, FINE_BASE, SCALED_SUMS, SCALES, TILE_ROWS};

/// The panels by the first `tokens` tokens of an integer tile.
///
/// # Safety
/// As [`IntegerTile`] states.
pub(super) unsafe fn integer(
    width: Width,
    scaling: Scaling,
    tile: &IntegerTile<'_>,
    tokens: usize,
    out: &mut Outputs,
) {
    for (panel, out) in tile.panels.iter().zip(out) {
        // SAFETY: by the contract.
        unsafe { integer_panel(width, scaling, *panel, tile, &mut out[..tokens]) };
    }
}

/// Integer sums of a plane are computed in f32, which vectorises on every machine and is as exact: all
/// terms are integers and all sums below 255 × 127 × 32 < 2²⁴.
///
/// # Safety
/// As [`IntegerTile`] states; `panel` is one of the tile's.
unsafe fn integer_panel(
    width: Width,
    scaling: Scaling,
    panel: *const u8,
    tile: &IntegerTile<'_>,
    out: &mut [Lanes],
) {
    let panel_bytes = scaling.panel_bytes(width, tile.groups);
    // SAFETY: the panel has this many bytes.
    let panel = unsafe { std::slice::from_raw_parts(panel, panel_bytes) };
    let planes = 1 + usize::from(tile.fine);
    let mut codes = [[0.0; PANEL_ROWS]; GROUP];
    let mut accumulators = [[0.0; PANEL_ROWS]; TILE_ROWS];
    for group in 0..tile.groups {
        // SAFETY: the activations have as many blocks as the panel groups.
        let blocks = unsafe {
            let start = tile.activations.add(group * planes * BLOCK_BYTES);
            std::slice::from_raw_parts(start.cast::<[u8; BLOCK_BYTES]>(), planes)
        };
        let place = scaling.place(width, group);
        signed_codes(width, scaling.offset(), &panel[place.codes..], &mut codes);
        let scales: [_; PANEL_ROWS] = core::array::from_fn(|row| scaling.row(panel, place, row));
        for (token, accumulator) in accumulators.iter_mut().enumerate().take(out.len()) {
            let scale = f32_at(&blocks[0], SCALES + token * 4);
            let [first, second] = sums(&codes, blocks, token);
            for (row, acc) in accumulator.iter_mut().enumerate() {
                let weight = scales[row].halves;
                if scaling == Scaling::SuperHalves {
                    *acc = (weight[0] * scale).mul_add(first[row] as f32, *acc);
                    *acc = (weight[1] * scale).mul_add(second[row] as f32, *acc);
                } else {
                    let sum = first[row] + second[row];
                    *acc = (weight[0] * scale).mul_add(sum as f32, *acc);
                }
            }
            if matches!(scaling, Scaling::Minimum | Scaling::SuperMinimum) {
                let scaled_sum = f32_at(&blocks[0], SCALED_SUMS + token * 4);
                for (acc, scale) in accumulator.iter_mut().zip(&scales) {
                    *acc = scale.bias.mul_add(scaled_sum, *acc);
                }
            }
        }
    }
    for (out, accumulator) in out.iter_mut().zip(accumulators) {
        out.0 = accumulator;
    }
}

/// `code − offset` of a tile, by column and row.
fn signed_codes(width: Width, offset: i32, tile: &[u8], codes: &mut [[f32; PANEL_ROWS]; GROUP]) {
    let mut lines = [0; TILE_CODES];
    width.unpack(&tile[..width.tile_bytes()], &mut lines);
    for (columns, line) in codes.chunks_exact_mut(QUAD).zip(lines.chunks_exact(LINE)) {
        for (column, codes) in columns.iter_mut().enumerate() {
            for (row, code) in codes.iter_mut().enumerate() {
                *code = (i32::from(line[row * QUAD + column]) - offset) as f32;
            }
        }
    }
}

/// Integer dot products of sixteen rows with one token's one or two planes, by half group.
fn sums(
    codes: &[[f32; PANEL_ROWS]; GROUP],
    blocks: &[[u8; BLOCK_BYTES]],
    token: usize,
) -> [[i32; PANEL_ROWS]; 2] {
    let mut total = [[0; PANEL_ROWS]; 2];
    for block in blocks {
        let planes = dots(codes, &block[token * GROUP..][..GROUP]);
        for (total, plane) in total.iter_mut().zip(planes) {
            for (total, sum) in total.iter_mut().zip(plane) {
                *total = *total * FINE_BASE + sum as i32;
            }
        }
    }
    total
}

/// Integer dot products of sixteen rows with one plane of a token, by half group.
fn dots(codes: &[[f32; PANEL_ROWS]; GROUP], x: &[u8]) -> [[f32; PANEL_ROWS]; 2] {
    let mut halves = [[0.0; PANEL_ROWS]; 2];
    let parts = codes.chunks_exact(GROUP / 2).zip(x.chunks_exact(GROUP / 2));
    for (sums, (codes, x)) in halves.iter_mut().zip(parts) {
        for (codes, x) in codes.iter().zip(x) {
            let x = f32::from(*x as i8);
            for (sum, code) in sums.iter_mut().zip(codes) {
                *sum += code * x;
            }
        }
    }
    halves
}

fn f32_at(block: &[u8; BLOCK_BYTES], at: usize) -> f32 {
    f32::from_ne_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The panels by the first `tokens` tokens of a float tile.
///
/// # Safety
/// As [`FloatTile`] states.
pub(super) unsafe fn float(float: Float, tile: &FloatTile<'_>, tokens: usize, out: &mut Outputs) {
    for (panel, out) in tile.panels.iter().zip(out) {
        // SAFETY: by the contract.
        unsafe { float_panel(float, *panel, tile, &mut out[..tokens]) };
    }
}

/// # Safety
/// As [`FloatTile`] states; `panel` is one of the tile's.
unsafe fn float_panel(float: Float, panel: *const u8, tile: &FloatTile<'_>, out: &mut [Lanes]) {
    let size = PANEL_ROWS * float.bytes();
    let mut chains = [[[0.0_f32; PANEL_ROWS]; TILE_ROWS]; 2];
    for column in 0..tile.columns {
        // SAFETY: the panel has `columns` columns of sixteen values, the tile as many of six.
        let (weights, x) = unsafe {
            let weights = std::slice::from_raw_parts(panel.add(column * size), size);
            (
                weights,
                &*tile
                    .activations
                    .add(column * TILE_ROWS)
                    .cast::<[f32; TILE_ROWS]>(),
            )
        };
        let weights: [f32; PANEL_ROWS] = core::array::from_fn(|row| float.value(weights, row));
        for (chain, x) in chains[column % 2].iter_mut().zip(x).take(out.len()) {
            for (acc, weight) in chain.iter_mut().zip(weights) {
                *acc = weight.mul_add(*x, *acc);
            }
        }
    }
    let [even, odd] = chains;
    for ((out, even), odd) in out.iter_mut().zip(even).zip(odd) {
        out.0 = core::array::from_fn(|row| even[row] + odd[row]);
    }
}
