//! From a file's blocks to panels.
//!
//! Reads the block layouts of ggml (`ggml-common.h`); knows nothing of products.

use baton_model_file::{TensorType, scale_and_minimum};

use super::format::{
    Format, GROUP, GroupPlace, LINE, PANEL_ROWS, QUAD, SUPER_GROUPS, Scaling, TILE_CODES, Width,
};

/// Packs up to sixteen rows into one panel. `rows` are bytes of equal length; missing rows are zeros.
pub(super) fn pack_panel(kind: TensorType, columns: usize, rows: &[&[u8]], panel: &mut [u8]) {
    let format = Format::of(kind);
    match format {
        Format::Float(float) => {
            let size = float.bytes();
            for (row, bytes) in rows.iter().enumerate() {
                for (column, value) in bytes.chunks_exact(size).enumerate() {
                    panel[(column * PANEL_ROWS + row) * size..][..size].copy_from_slice(value);
                }
            }
        }
        Format::Integer(width, scaling) => {
            for group in 0..columns / GROUP {
                let place = scaling.place(width, group);
                let tile = &mut panel[place.codes..][..width.tile_bytes()];
                pack_tile(kind, width, group, rows, tile);
                for (row, bytes) in rows.iter().enumerate() {
                    let block = block_of(kind, bytes, group);
                    pack_scales(
                        kind,
                        scaling,
                        group % SUPER_GROUPS,
                        block,
                        row,
                        place,
                        panel,
                    );
                }
            }
        }
    }
}

fn pack_tile(kind: TensorType, width: Width, group: usize, rows: &[&[u8]], tile: &mut [u8]) {
    let mut lines = [0; TILE_CODES];
    for (row, bytes) in rows.iter().enumerate() {
        let codes = group_codes(kind, block_of(kind, bytes, group), group % SUPER_GROUPS);
        for (quad, four) in codes.chunks_exact(QUAD).enumerate() {
            lines[quad * LINE + row * QUAD..][..QUAD].copy_from_slice(four);
        }
    }
    width.pack(&lines, tile);
}

/// The file's block that holds `group` of a row.
fn block_of(kind: TensorType, row: &[u8], group: usize) -> &[u8] {
    let block = group / (kind.block_size() / GROUP);
    &row[block * kind.block_bytes()..][..kind.block_bytes()]
}

/// The 32 codes of one group, unsigned. `within` is the group's place in a super-block.
fn group_codes(kind: TensorType, block: &[u8], within: usize) -> [u8; GROUP] {
    match kind {
        TensorType::Q8_0 => core::array::from_fn(|i| block[2 + i] ^ 0x80),
        TensorType::Q4_0 => nibbles(&block[2..18]),
        TensorType::Q4_1 => nibbles(&block[4..20]),
        TensorType::Q5_0 => fifth_bits(nibbles(&block[6..22]), &block[2..6]),
        TensorType::Q5_1 => fifth_bits(nibbles(&block[8..24]), &block[4..8]),
        TensorType::Q4_K => super_nibbles(&block[16..], within),
        TensorType::Q5_K => {
            let low = super_nibbles(&block[48..], within);
            core::array::from_fn(|i| low[i] | (((block[16 + i] >> within) & 1) << 4))
        }
        TensorType::Q6_K => {
            let (half, quarter) = (within / 4, within % 4);
            let low = &block[half * 64 + quarter % 2 * 32..];
            let high = &block[128 + half * 32..];
            core::array::from_fn(|i| {
                ((low[i] >> (4 * (quarter / 2))) & 15) | (((high[i] >> (2 * quarter)) & 3) << 4)
            })
        }
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
            unreachable!("floats have no codes")
        }
    }
}

/// Low nibbles are the first sixteen codes, high nibbles the others.
fn nibbles(bytes: &[u8]) -> [u8; GROUP] {
    core::array::from_fn(|i| (bytes[i % 16] >> (4 * (i / 16))) & 15)
}

/// Bit `i` of the little-endian `high` is the fifth bit of code `i`.
fn fifth_bits(low: [u8; GROUP], high: &[u8]) -> [u8; GROUP] {
    core::array::from_fn(|i| low[i] | (((high[i / 8] >> (i % 8)) & 1) << 4))
}

/// Each 32 bytes hold two groups: low nibbles the even one, high nibbles the odd one.
fn super_nibbles(bytes: &[u8], within: usize) -> [u8; GROUP] {
    let pair = &bytes[within / 2 * 32..];
    core::array::from_fn(|i| (pair[i] >> (4 * (within % 2))) & 15)
}

fn pack_scales(
    kind: TensorType,
    scaling: Scaling,
    within: usize,
    block: &[u8],
    row: usize,
    place: GroupPlace,
    panel: &mut [u8],
) {
    let d = if kind == TensorType::Q6_K {
        &block[208..210]
    } else {
        &block[..2]
    };
    panel[place.header + row * 2..][..2].copy_from_slice(d);
    if matches!(scaling, Scaling::Minimum | Scaling::SuperMinimum) {
        panel[place.header + 32 + row * 2..][..2].copy_from_slice(&block[2..4]);
    }
    let pair = match scaling {
        Scaling::SuperMinimum => scale_and_minimum(&block[4..16], within),
        Scaling::SuperHalves => (block[192 + 2 * within], block[193 + 2 * within]),
        Scaling::Offset(_) | Scaling::Minimum => return,
    };
    panel[place.scales + row] = pair.0;
    panel[place.scales + PANEL_ROWS + row] = pair.1;
}
