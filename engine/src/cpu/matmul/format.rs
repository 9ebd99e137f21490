//! How weights lie in memory once packed, per storage type.
//!
//! Output rows go in *panels* of [`PANEL_ROWS`], which a product reads from front to back. For integer
//! types a panel holds, for each *group* of [`GROUP`] columns, the scales of the sixteen rows and then a
//! *tile* of codes, in which one 64-byte line has four consecutive columns of all sixteen rows (what one
//! 512-bit integer dot product takes). Codes are unsigned; signed types carry a constant offset that the
//! kernels undo with the sum of the activations. Float types keep, for each column, the values of the
//! sixteen rows.
//!
//! Knows nothing of files, threads or instruction sets.

use baton_model_file::TensorType;
use half::f16;

/// Output rows of a panel: lanes of a 512-bit register of 32-bit values.
pub(super) const PANEL_ROWS: usize = 16;
/// Columns that share a scale, and activations that are quantised together.
pub(super) const GROUP: usize = 32;
/// Columns of one line of codes.
pub(super) const QUAD: usize = 4;
/// Codes of a group of a panel.
pub(super) const TILE_CODES: usize = GROUP * PANEL_ROWS;
/// Bytes of a line: sixteen rows by four columns.
pub(super) const LINE: usize = PANEL_ROWS * QUAD;
/// Groups of a K-quant super-block.
pub(super) const SUPER_GROUPS: usize = 8;

/// Value of a code: `scale * code + bias`, where the two come from the group's scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scaling {
    /// `d * (code - offset)`: 16 × f16 `d` per group.
    Offset(i32),
    /// `d * code + m`: 16 × f16 `d`, 16 × f16 `m` per group.
    Minimum,
    /// `d * s * code - dmin * m`: per 8 groups 16 × f16 `d` and `dmin`, then per group 16 × u8 `s`
    /// and `m`.
    SuperMinimum,
    /// `d * s * (code - 32)`, `s` per 16 columns: per 8 groups 16 × f16 `d`, then per group 16 × i8 `s`
    /// of the first and of the second half.
    SuperHalves,
}

/// Packed form of integer codes: bits per code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// Four lines; line `c` has quad `2c` in the low and quad `2c + 1` in the high nibbles.
    Four,
    /// As `Four`, then one line whose bit `q` of each byte is the fifth bit of quad `q`.
    Five,
    /// As `Four`, then two lines with the upper two bits of quads 0..4 and 4..8, lowest quad lowest.
    Six,
    /// Eight lines, one per quad.
    Eight,
}

/// Value type of float weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Float {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// Upper half of a single.
    Bf16,
}

/// Storage of one matrix (or of some rows of one).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Integer codes with scales.
    Integer(Width, Scaling),
    /// Floats as they are.
    Float(Float),
}

impl Format {
    /// The packed form of a file's type.
    pub(super) fn of(kind: TensorType) -> Self {
        match kind {
            TensorType::F32 => Self::Float(Float::F32),
            TensorType::F16 => Self::Float(Float::F16),
            TensorType::BF16 => Self::Float(Float::Bf16),
            TensorType::Q4_0 => Self::Integer(Width::Four, Scaling::Offset(8)),
            TensorType::Q4_1 => Self::Integer(Width::Four, Scaling::Minimum),
            TensorType::Q4_K => Self::Integer(Width::Four, Scaling::SuperMinimum),
            TensorType::Q5_0 => Self::Integer(Width::Five, Scaling::Offset(16)),
            TensorType::Q5_1 => Self::Integer(Width::Five, Scaling::Minimum),
            TensorType::Q5_K => Self::Integer(Width::Five, Scaling::SuperMinimum),
            TensorType::Q6_K => Self::Integer(Width::Six, Scaling::SuperHalves),
            TensorType::Q8_0 => Self::Integer(Width::Eight, Scaling::Offset(128)),
        }
    }

    /// Bytes from one panel to the next: whole lines.
    pub(super) fn panel_bytes(self, columns: usize) -> usize {
        let bytes = match self {
            Self::Integer(width, scaling) => scaling.panel_bytes(width, columns / GROUP),
            Self::Float(float) => columns * PANEL_ROWS * float.bytes(),
        };
        bytes.next_multiple_of(LINE)
    }
}

impl Float {
    /// Bytes of a value.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The value at `index` of little-endian values; exact.
    pub(super) fn value(self, bytes: &[u8], index: usize) -> f32 {
        match self {
            Self::F32 => {
                let at = &bytes[index * 4..index * 4 + 4];
                f32::from_le_bytes([at[0], at[1], at[2], at[3]])
            }
            Self::F16 => half_at(bytes, index),
            Self::Bf16 => {
                let at = &bytes[index * 2..index * 2 + 2];
                half::bf16::from_le_bytes([at[0], at[1]]).to_f32()
            }
        }
    }
}

impl Width {
    /// Bytes of a group's codes.
    pub(super) const fn tile_bytes(self) -> usize {
        match self {
            Self::Four => 4 * LINE,
            Self::Five => 5 * LINE,
            Self::Six => 6 * LINE,
            Self::Eight => 8 * LINE,
        }
    }

    /// The code of `quad` (0..8) at `byte` (row × 4 + column) of a packed tile.
    pub(super) fn code(self, tile: &[u8], quad: usize, byte: usize) -> u8 {
        if self == Self::Eight {
            return tile[quad * LINE + byte];
        }
        let low = (tile[quad / 2 * LINE + byte] >> (4 * (quad % 2))) & 15;
        let high = match self {
            Self::Five => (tile[4 * LINE + byte] >> quad) & 1,
            Self::Six => (tile[(4 + quad / 4) * LINE + byte] >> (2 * (quad % 4))) & 3,
            Self::Four | Self::Eight => 0,
        };
        low | (high << 4)
    }

    /// Packs eight lines of plain codes.
    pub(super) fn pack(self, codes: &[u8; TILE_CODES], tile: &mut [u8]) {
        if self == Self::Eight {
            tile.copy_from_slice(codes);
            return;
        }
        for (line, pair) in tile
            .chunks_exact_mut(LINE)
            .zip(codes.chunks_exact(2 * LINE))
        {
            let (even, odd) = pair.split_at(LINE);
            for ((packed, even), odd) in line.iter_mut().zip(even).zip(odd) {
                *packed = (even & 15) | ((odd & 15) << 4);
            }
        }
        let bits = match self {
            Self::Five => 1,
            Self::Six => 2,
            Self::Four | Self::Eight => return,
        };
        let high = &mut tile[4 * LINE..];
        high.fill(0);
        for (quad, line) in codes.chunks_exact(LINE).enumerate() {
            let place = quad * bits;
            let target = &mut high[place / 8 * LINE..][..LINE];
            for (packed, code) in target.iter_mut().zip(line) {
                *packed |= (code >> 4) << (place % 8);
            }
        }
    }

    /// The eight lines of plain codes of a packed tile.
    pub(super) fn unpack(self, tile: &[u8], codes: &mut [u8; TILE_CODES]) {
        if self == Self::Eight {
            codes.copy_from_slice(tile);
            return;
        }
        for (pair, line) in codes
            .chunks_exact_mut(2 * LINE)
            .zip(tile.chunks_exact(LINE))
        {
            let (even, odd) = pair.split_at_mut(LINE);
            for ((even, odd), packed) in even.iter_mut().zip(odd).zip(line) {
                *even = packed & 15;
                *odd = packed >> 4;
            }
        }
        let bits = match self {
            Self::Five => 1,
            Self::Six => 2,
            Self::Four | Self::Eight => return,
        };
        for (quad, line) in codes.chunks_exact_mut(LINE).enumerate() {
            let place = quad * bits;
            let high = &tile[(4 + place / 8) * LINE..][..LINE];
            for (code, packed) in line.iter_mut().zip(high) {
                *code |= ((packed >> (place % 8)) & ((1 << bits) - 1)) << 4;
            }
        }
    }
}

impl Scaling {
    /// Bytes before every eighth group.
    pub(super) const fn header_bytes(self) -> usize {
        match self {
            Self::Offset(_) | Self::Minimum => 0,
            Self::SuperMinimum => 64,
            Self::SuperHalves => 32,
        }
    }

    /// Bytes of scales before the codes of each group.
    pub(super) const fn entry_bytes(self) -> usize {
        match self {
            Self::Offset(_) | Self::SuperMinimum | Self::SuperHalves => 32,
            Self::Minimum => 64,
        }
    }

    /// Bytes of a panel of `groups` groups.
    pub(super) const fn panel_bytes(self, width: Width, groups: usize) -> usize {
        groups.div_ceil(SUPER_GROUPS) * self.header_bytes()
            + groups * (self.entry_bytes() + width.tile_bytes())
    }

    /// Where the parts of `group` are in a panel.
    #[inline]
    pub(super) const fn place(self, width: Width, group: usize) -> GroupPlace {
        let stride = self.entry_bytes() + width.tile_bytes();
        let block = group / SUPER_GROUPS;
        let scales = (block + 1) * self.header_bytes() + group * stride;
        let header = match self {
            Self::Offset(_) | Self::Minimum => scales,
            Self::SuperMinimum | Self::SuperHalves => {
                block * (self.header_bytes() + SUPER_GROUPS * stride)
            }
        };
        GroupPlace {
            header,
            scales,
            codes: scales + self.entry_bytes(),
        }
    }

    /// Offset of the codes, 0 where a minimum takes its part.
    pub(super) const fn offset(self) -> i32 {
        match self {
            Self::Offset(offset) => offset,
            Self::SuperHalves => 32,
            Self::Minimum | Self::SuperMinimum => 0,
        }
    }

    /// Scales of `row` of a panel in a group. All products are exact: an 11-bit mantissa times at most
    /// eight bits.
    pub(super) fn row(self, panel: &[u8], place: GroupPlace, row: usize) -> RowScale {
        let d = half_at(&panel[place.header..], row);
        let second = |panel: &[u8]| half_at(&panel[place.header + 32..], row);
        let (s, m) = (
            panel[place.scales + row],
            panel[place.scales + PANEL_ROWS + row],
        );
        match self {
            Self::Offset(_) => RowScale {
                halves: [d, d],
                bias: 0.0,
            },
            Self::Minimum => RowScale {
                halves: [d, d],
                bias: second(panel),
            },
            Self::SuperMinimum => {
                let scale = d * f32::from(s);
                RowScale {
                    halves: [scale, scale],
                    bias: -(second(panel) * f32::from(m)),
                }
            }
            Self::SuperHalves => {
                let scale = |s: u8| d * f32::from(s as i8);
                RowScale {
                    halves: [scale(s), scale(m)],
                    bias: 0.0,
                }
            }
        }
    }
}

/// Byte offsets of a group's parts in a panel.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupPlace {
    /// 16-bit scales: before the first of eight groups, or (equal to `scales`) of each group.
    pub(super) header: usize,
    /// The group's own scales.
    pub(super) scales: usize,
    /// The group's tile of codes.
    pub(super) codes: usize,
}

/// Scales of one row in one group.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowScale {
    /// Of the first and the last sixteen columns.
    pub(super) halves: [f32; 2],
    /// Added to each value.
    pub(super) bias: f32,
}

/// The half at `index` of little-endian values, exact.
pub(super) fn half_at(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]).to_f32()
}
