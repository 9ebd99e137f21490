//! Kernels in plain Rust: the definition of every output's bits.
//!
//! For integer weights, groups in ascending order:
//! `acc = fma(scale_w × scale_x, Σ (code − offset) × x, acc)`, the sum exact in integers (per half group
//! where scales are), then, where the type has a minimum, `acc = fma(minimum, scale_x × Σ x, acc)`.
//! For float weights two chains, one of even and one of odd columns, `acc = fma(w, x, acc)`, added at
//! the end. The kernels of an instruction set must give the same bits.

use super::activations::{BLOCK_BYTES, SCALED_SUMS, SCALES, SUMS, TILE_ROWS};
use super::format::{Float, GROUP, LINE, PANEL_ROWS, QUAD, Scaling, TILE_CODES, Width};
use super::kernel::{FloatTile, IntegerTile, Lanes};

/// Sixteen rows by `tokens` (at most four) tokens of an integer panel.
///
/// # Safety
/// As [`IntegerTile`] states.
pub(super) unsafe fn integer(
    width: Width,
    scaling: Scaling,
    tile: &IntegerTile,
    tokens: usize,
    out: &mut [Lanes],
) {
    let panel_bytes = scaling.panel_bytes(width, tile.groups);
    // SAFETY: the panel has this many bytes.
    let panel = unsafe { std::slice::from_raw_parts(tile.panel, panel_bytes) };
    let mut codes = [0; TILE_CODES];
    let mut accumulators = [[0.0; PANEL_ROWS]; TILE_ROWS];
    for group in 0..tile.groups {
        // SAFETY: the activations have as many blocks as the panel groups.
        let block = unsafe {
            &*tile
                .activations
                .add(group * BLOCK_BYTES)
                .cast::<[u8; BLOCK_BYTES]>()
        };
        let place = scaling.place(width, group);
        width.unpack(&panel[place.codes..][..width.tile_bytes()], &mut codes);
        let scales: [_; PANEL_ROWS] = core::array::from_fn(|row| scaling.row(panel, place, row));
        for (token, accumulator) in accumulators.iter_mut().enumerate().take(tokens) {
            let x: &[u8] = &block[token * GROUP..][..GROUP];
            let scale = f32_at(block, SCALES + token * 4);
            let scaled_sum = f32_at(block, SCALED_SUMS + token * 4);
            let sums = [0, 1].map(|half| i16_at(block, SUMS + token * 4 + half * 2));
            let [first, second] = dots(&codes, x);
            for (row, acc) in accumulator.iter_mut().enumerate() {
                let dot = [first[row], second[row]];
                let dot = [0, 1].map(|h| dot[h] - scaling.offset() * i32::from(sums[h]));
                let weight = scales[row];
                if scaling == Scaling::SuperHalves {
                    *acc = (weight.halves[0] * scale).mul_add(dot[0] as f32, *acc);
                    *acc = (weight.halves[1] * scale).mul_add(dot[1] as f32, *acc);
                } else {
                    let dot = (dot[0] + dot[1]) as f32;
                    *acc = (weight.halves[0] * scale).mul_add(dot, *acc);
                }
                if matches!(scaling, Scaling::Minimum | Scaling::SuperMinimum) {
                    *acc = weight.bias.mul_add(scaled_sum, *acc);
                }
            }
        }
    }
    for (out, accumulator) in out.iter_mut().zip(accumulators).take(tokens) {
        out.0 = accumulator;
    }
}

/// Integer dot products of sixteen rows with one token, by half group.
fn dots(codes: &[u8; TILE_CODES], x: &[u8]) -> [[i32; PANEL_ROWS]; 2] {
    let mut halves = [[0; PANEL_ROWS]; 2];
    let quads = codes
        .chunks_exact(LINE)
        .zip(x.chunks_exact(QUAD))
        .enumerate();
    for (quad, (line, x)) in quads {
        let x: [i32; QUAD] = core::array::from_fn(|i| i32::from(x[i] as i8));
        let sums = &mut halves[quad / 4];
        for (sum, codes) in sums.iter_mut().zip(line.chunks_exact(QUAD)) {
            *sum += i32::from(codes[0]) * x[0]
                + i32::from(codes[1]) * x[1]
                + i32::from(codes[2]) * x[2]
                + i32::from(codes[3]) * x[3];
        }
    }
    halves
}

fn f32_at(block: &[u8; BLOCK_BYTES], at: usize) -> f32 {
    f32::from_ne_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn i16_at(block: &[u8; BLOCK_BYTES], at: usize) -> i16 {
    i16::from_ne_bytes([block[at], block[at + 1]])
}

/// Sixteen rows by `tokens` (at most four) tokens of a float panel.
///
/// # Safety
/// As [`FloatTile`] states.
pub(super) unsafe fn float(float: Float, tile: &FloatTile, tokens: usize, out: &mut [Lanes]) {
    let size = PANEL_ROWS * float.bytes();
    let mut chains = [[[0.0_f32; PANEL_ROWS]; TILE_ROWS]; 2];
    for column in 0..tile.columns {
        // SAFETY: the panel has `columns` columns of sixteen values, the tile as many of four.
        let (weights, x) = unsafe {
            let weights = std::slice::from_raw_parts(tile.panel.add(column * size), size);
            (
                weights,
                &*tile
                    .activations
                    .add(column * TILE_ROWS)
                    .cast::<[f32; TILE_ROWS]>(),
            )
        };
        let weights: [f32; PANEL_ROWS] = core::array::from_fn(|row| float.value(weights, row));
        for (chain, x) in chains[column % 2].iter_mut().zip(x).take(tokens) {
            for (acc, weight) in chain.iter_mut().zip(weights) {
                *acc = weight.mul_add(*x, *acc);
            }
        }
    }
    let [even, odd] = chains;
    for ((out, even), odd) in out.iter_mut().zip(even).zip(odd).take(tokens) {
        out.0 = core::array::from_fn(|row| even[row] + odd[row]);
    }
}
