//! Kernels in plain Rust: the definition of every output's bits.
//!
//! For integer weights, groups in ascending order:
//! `acc = fma(scale_w × scale_x, Σ (code − offset) × x, acc)`, the sum exact in integers (per half group
//! where scales are) and then rounded to f32 (which only shows for fine activations), then, where the type
//! has a minimum, `acc = fma(minimum, scale_x × Σ x, acc)`.
//! For float weights two chains, one of even and one of odd columns, `acc = fma(w, x, acc)`, added at
//! the end. The kernels of an instruction set must give the same bits.

use super::format::{Float, GROUP, LINE, PANEL_ROWS, QUAD, Scaling, TILE_CODES, Width};
use super::kernel::{Strip, Tile};
use super::quantize::{FINE_BASE, SCALE, SCALED_SUM, group_bytes};

/// Tokens that share the decoding of weights.
const TOKENS: usize = 8;

/// Computes an integer strip.
///
/// # Safety
/// As [`Strip`] states.
pub(super) unsafe fn integer(width: Width, scaling: Scaling, strip: &Strip) {
    for tile in strip.tiles(TOKENS, 1) {
        // SAFETY: by the contract.
        unsafe { integer_tile(width, scaling, strip, tile) };
    }
}

/// Integer sums of a plane are computed in f32, which vectorises on every machine and is as exact: all
/// terms are integers and all sums below 255 × 127 × 32 < 2²⁴.
///
/// # Safety
/// As [`Strip`] states; `tile` is one of its tiles.
unsafe fn integer_tile(width: Width, scaling: Scaling, strip: &Strip, tile: Tile) {
    let groups = strip.columns / GROUP;
    // SAFETY: the panel has this many bytes.
    let panel =
        unsafe { std::slice::from_raw_parts(strip.panel, scaling.panel_bytes(width, groups)) };
    let planes = 1 + usize::from(strip.fine);
    let bytes = group_bytes(planes);
    let mut codes = [[0.0; PANEL_ROWS]; GROUP];
    let mut accumulators = [[0.0; PANEL_ROWS]; TOKENS];
    for group in 0..groups {
        let place = scaling.place(width, group);
        signed_codes(width, scaling.offset(), &panel[place.codes..], &mut codes);
        let scales: [_; PANEL_ROWS] = core::array::from_fn(|row| scaling.row(panel, place, row));
        for (token, accumulator) in accumulators.iter_mut().enumerate().take(tile.tokens) {
            // SAFETY: each row has as many groups as the panel.
            let x = unsafe {
                let row = tile.activations.add(token * strip.stride);
                std::slice::from_raw_parts(row.add(group * bytes), bytes)
            };
            let (x, numbers) = x.split_at(planes * GROUP);
            let scale = f32_at(numbers, SCALE);
            let [first, second] = sums(&codes, x);
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
                let scaled_sum = f32_at(numbers, SCALED_SUM);
                for (acc, scale) in accumulator.iter_mut().zip(&scales) {
                    *acc = scale.bias.mul_add(scaled_sum, *acc);
                }
            }
        }
    }
    for (token, accumulator) in accumulators.iter().enumerate().take(tile.tokens) {
        // SAFETY: by the contract.
        unsafe { put(strip, tile, token, accumulator) };
    }
}

/// # Safety
/// As [`Strip`] states; `token` is one of the tile's.
unsafe fn put(strip: &Strip, tile: Tile, token: usize, values: &[f32; PANEL_ROWS]) {
    // SAFETY: by the contract.
    unsafe {
        let target = tile.out.add(token * strip.out_stride);
        target.copy_from_nonoverlapping(values.as_ptr(), PANEL_ROWS);
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

/// Integer dot products of sixteen rows with a group of one or two planes, by half group.
fn sums(codes: &[[f32; PANEL_ROWS]; GROUP], planes: &[u8]) -> [[i32; PANEL_ROWS]; 2] {
    let mut total = [[0; PANEL_ROWS]; 2];
    for plane in planes.chunks_exact(GROUP) {
        for (total, plane) in total.iter_mut().zip(dots(codes, plane)) {
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

fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Computes a float strip.
///
/// # Safety
/// As [`Strip`] states.
pub(super) unsafe fn float(float: Float, strip: &Strip) {
    for tile in strip.tiles(TOKENS, 1) {
        // SAFETY: by the contract.
        unsafe { float_tile(float, strip, tile) };
    }
}

/// # Safety
/// As [`Strip`] states; `tile` is one of its tiles.
unsafe fn float_tile(float: Float, strip: &Strip, tile: Tile) {
    let size = PANEL_ROWS * float.bytes();
    // SAFETY: the panel has `columns` columns of sixteen values.
    let panel = unsafe { std::slice::from_raw_parts(strip.panel, strip.columns * size) };
    let mut chains = [[[0.0_f32; PANEL_ROWS]; TOKENS]; 2];
    for (column, weights) in panel.chunks_exact(size).enumerate() {
        let weights: [f32; PANEL_ROWS] = core::array::from_fn(|row| float.value(weights, row));
        let chains = chains[column % 2].iter_mut().take(tile.tokens);
        for (token, chain) in chains.enumerate() {
            // SAFETY: each row has `columns` values, aligned.
            let x = unsafe {
                let row = tile.activations.add(token * strip.stride);
                *row.cast::<f32>().add(column)
            };
            for (acc, weight) in chain.iter_mut().zip(weights) {
                *acc = weight.mul_add(x, *acc);
            }
        }
    }
    let [even, odd] = chains;
    for token in 0..tile.tokens {
        let sums = core::array::from_fn(|row| even[token][row] + odd[token][row]);
        // SAFETY: by the contract.
        unsafe { put(strip, tile, token, &sums) };
    }
}
