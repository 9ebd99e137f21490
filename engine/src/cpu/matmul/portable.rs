//! Kernels in plain Rust: the definition of every output's bits.
//!
//! For integer weights, groups in ascending order:
//! `acc = fma(scale_w × scale_x, Σ (code − offset) × x, acc)`, the sum exact in integers (per half group
//! where scales are), then, where the type has a minimum, `acc = fma(minimum, scaled sum of x, acc)`. Where activations have second digits, then
//! once more groups in ascending order, `acc = fma(scale_w × low_x, Σ (code − offset) × x, acc)`.
//! For float weights two chains, one of even and one of odd columns, `acc = fma(w, x, acc)`, added at
//! the end. The kernels of an instruction set must give the same bits.

use super::format::{Float, GROUP, LINE, PANEL_ROWS, QUAD, RowScale, Scaling, TILE_CODES, Width};
use super::kernel::{Strip, Tile};
use super::quantize::{GROUP_BYTES, SCALE, SCALED_SUM};

/// Tokens that share the decoding of weights.
const TOKENS: usize = 8;

/// Computes an integer strip.
///
/// # Safety
/// As [`Strip`] states.
pub(super) unsafe fn integer(width: Width, scaling: Scaling, strip: &Strip) {
    let groups = strip.columns / GROUP;
    // SAFETY: the panel has this many bytes.
    let panel =
        unsafe { std::slice::from_raw_parts(strip.panel, scaling.panel_bytes(width, groups)) };
    let panel = Panel {
        bytes: panel,
        width,
        scaling,
    };
    for tile in strip.tiles(TOKENS, 1) {
        let mut accumulators = [[0.0; PANEL_ROWS]; TOKENS];
        for group in 0..groups {
            let weights = panel.group(group);
            for (token, accumulator) in accumulators.iter_mut().enumerate().take(tile.tokens) {
                // SAFETY: each row has as many groups as the panel.
                let x = unsafe {
                    let row = tile.activations.add(token * strip.stride);
                    &*row.add(group * GROUP_BYTES).cast::<[u8; GROUP_BYTES]>()
                };
                weights.add(x, accumulator);
                weights.add_minimums(x, accumulator);
            }
        }
        for (token, accumulator) in accumulators.iter().enumerate().take(tile.tokens) {
            // SAFETY: by the contract.
            unsafe { put(strip, tile, token, accumulator) };
        }
    }
    for group in 0..groups {
        // SAFETY: one of the strip's groups.
        let mut marked = unsafe { strip.marked(group) }.peekable();
        if marked.peek().is_none() {
            continue;
        }
        let weights = panel.group(group);
        for token in marked {
            // SAFETY: second digits of a token of the strip, and its outputs.
            unsafe {
                let row = strip
                    .activations
                    .add(token * strip.stride + strip.second.low);
                let x = &*row.add(group * GROUP_BYTES).cast::<[u8; GROUP_BYTES]>();
                let out = strip.out.add(token * strip.out_stride);
                let mut accumulator = out.cast::<[f32; PANEL_ROWS]>().read_unaligned();
                weights.add(x, &mut accumulator);
                out.cast::<[f32; PANEL_ROWS]>().write_unaligned(accumulator);
            }
        }
    }
}

/// A panel of integer weights.
#[derive(Clone, Copy)]
struct Panel<'a> {
    bytes: &'a [u8],
    width: Width,
    scaling: Scaling,
}

/// A group of it, decoded.
struct Group {
    scaling: Scaling,
    codes: [[f32; PANEL_ROWS]; GROUP],
    scales: [RowScale; PANEL_ROWS],
}

impl Panel<'_> {
    fn group(self, group: usize) -> Group {
        let (scaling, place) = (self.scaling, self.scaling.place(self.width, group));
        Group {
            scaling,
            codes: signed_codes(self.width, scaling.offset(), &self.bytes[place.codes..]),
            scales: core::array::from_fn(|row| scaling.row(self.bytes, place, row)),
        }
    }
}

impl Group {
    /// Adds the products with one digit of a token's group.
    fn add(&self, x: &[u8; GROUP_BYTES], accumulator: &mut [f32; PANEL_ROWS]) {
        let scale = f32_at(x, SCALE);
        let [first, second] = dots(&self.codes, &x[..GROUP]);
        for (row, acc) in accumulator.iter_mut().enumerate() {
            let weight = self.scales[row].halves;
            if self.scaling == Scaling::SuperHalves {
                *acc = (weight[0] * scale).mul_add(first[row], *acc);
                *acc = (weight[1] * scale).mul_add(second[row], *acc);
            } else {
                *acc = (weight[0] * scale).mul_add(first[row] + second[row], *acc);
            }
        }
    }

    /// Adds the minimums times the scaled sum of a token's group.
    fn add_minimums(&self, x: &[u8; GROUP_BYTES], accumulator: &mut [f32; PANEL_ROWS]) {
        if matches!(self.scaling, Scaling::Minimum | Scaling::SuperMinimum) {
            let scaled_sum = f32_at(x, SCALED_SUM);
            for (acc, scale) in accumulator.iter_mut().zip(&self.scales) {
                *acc = scale.bias.mul_add(scaled_sum, *acc);
            }
        }
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
fn signed_codes(width: Width, offset: i32, tile: &[u8]) -> [[f32; PANEL_ROWS]; GROUP] {
    let mut lines = [0; TILE_CODES];
    width.unpack(&tile[..width.tile_bytes()], &mut lines);
    let mut codes = [[0.0; PANEL_ROWS]; GROUP];
    for (columns, line) in codes.chunks_exact_mut(QUAD).zip(lines.chunks_exact(LINE)) {
        for (column, codes) in columns.iter_mut().enumerate() {
            for (row, code) in codes.iter_mut().enumerate() {
                *code = (i32::from(line[row * QUAD + column]) - offset) as f32;
            }
        }
    }
    codes
}

/// Integer dot products of sixteen rows with a token, by half group. They are computed in f32, which
/// vectorises on every machine and is as exact: all terms are integers and all sums below
/// 255 × 127 × 32 < 2²⁴.
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
