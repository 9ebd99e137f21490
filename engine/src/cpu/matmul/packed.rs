//! A weight matrix in memory, in the panels of `format`.

use std::ops::Range;

use baton_model_file::TensorType;

use super::ROW_TILE;
use super::activations::ActivationForm;
use super::format::{Format, GROUP, LINE, PANEL_ROWS, QUAD};
use super::pack::pack_panel;
use crate::cpu::memory::{Arena, Buffer};

/// Largest packed matrix, in bytes (a sanity bound, far above real ones).
const MAX_BYTES: usize = 1 << 40;

/// Weights that cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// No rows or no columns.
    #[error("an empty matrix: {rows} rows × {columns} columns")]
    Empty {
        /// Output features.
        rows: usize,
        /// Input features.
        columns: usize,
    },
    /// Rows are whole blocks in these formats.
    #[error("{columns} columns are not a multiple of {kind:?}'s block of {block}")]
    Columns {
        /// Storage type.
        kind: TensorType,
        /// Input features.
        columns: usize,
        /// Values per block.
        block: usize,
    },
    /// The bytes are not those of the shape.
    #[error("{rows} × {columns} values of {kind:?} have {actual} bytes, expected {expected}")]
    Length {
        /// Storage type.
        kind: TensorType,
        /// Output features.
        rows: usize,
        /// Input features.
        columns: usize,
        /// What the shape needs.
        expected: usize,
        /// What was given.
        actual: usize,
    },
    /// A pair needs a partner for each row.
    #[error("a pair of matrices of {first} and {second} rows")]
    Pair {
        /// Rows of the first.
        first: usize,
        /// Rows of the second.
        second: usize,
    },
    /// Beyond what any machine holds.
    #[error("{rows} × {columns} values of {kind:?} exceed {MAX_BYTES} bytes")]
    TooLarge {
        /// Storage type.
        kind: TensorType,
        /// Output features.
        rows: usize,
        /// Input features.
        columns: usize,
    },
    /// The system refuses the memory.
    #[error("{bytes} bytes of packed weights: {reason}")]
    Memory {
        /// What was asked for.
        bytes: usize,
        /// The system's answer.
        reason: std::io::ErrorKind,
    },
}

/// A weight matrix: `rows` output features by `columns` input features. In a *pair* the panels of two
/// matrices take turns, and a product gates the outputs of the first with those of the second.
#[derive(Debug)]
pub struct PackedMatrix {
    rows: usize,
    columns: usize,
    pair: bool,
    segments: Vec<Segment>,
    data: Buffer,
}

/// Consecutive rows of one format.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) format: Format,
    pub(super) rows: Range<usize>,
    /// Byte offset of the first panel.
    start: usize,
    pub(super) panel_bytes: usize,
    /// Bytes from one panel to the next.
    pub(super) stride: usize,
}

impl PackedMatrix {
    /// Packs one tensor; `data` is row after row as in the file.
    ///
    /// # Errors
    /// A shape that the format or the bytes do not fit.
    pub fn pack(
        kind: TensorType,
        rows: usize,
        columns: usize,
        data: &[u8],
    ) -> Result<Self, PackError> {
        Self::pack_rows(&[(kind, rows, data)], columns)
    }

    /// Packs tensors with the same columns below each other: the outputs follow in order.
    ///
    /// # Errors
    /// As [`PackedMatrix::pack`], for the first part that fails.
    pub fn pack_rows(
        parts: &[(TensorType, usize, &[u8])],
        columns: usize,
    ) -> Result<Self, PackError> {
        Self::pack_within(&mut Arena::default(), parts, columns)
    }

    /// As [`PackedMatrix::pack_rows`], into memory of `arena`.
    ///
    /// # Errors
    /// As there.
    pub fn pack_within(
        arena: &mut Arena,
        parts: &[(TensorType, usize, &[u8])],
        columns: usize,
    ) -> Result<Self, PackError> {
        Self::pack_parts(arena, parts, columns, false)
    }

    /// Packs two tensors of the same shape as a pair.
    ///
    /// # Errors
    /// As [`PackedMatrix::pack_rows`], and if the two have not equally many rows.
    pub fn pack_pair_within(
        arena: &mut Arena,
        parts: &[(TensorType, usize, &[u8])],
        columns: usize,
    ) -> Result<Self, PackError> {
        let rows = |part: usize| parts.get(part).map_or(0, |(_, rows, _)| *rows);
        let (first, second) = (rows(0), rows(1));
        if parts.len() != 2 || first != second {
            return Err(PackError::Pair { first, second });
        }
        Self::pack_parts(arena, parts, columns, true)
    }

    fn pack_parts(
        arena: &mut Arena,
        parts: &[(TensorType, usize, &[u8])],
        columns: usize,
        pair: bool,
    ) -> Result<Self, PackError> {
        let mut segments: Vec<Segment> = Vec::with_capacity(parts.len());
        let (mut rows, mut bytes) = (0, 0);
        for &(kind, part_rows, data) in parts {
            check(kind, part_rows, columns, data)?;
            let format = Format::of(kind);
            let panel_bytes = format.panel_bytes(columns);
            segments.push(Segment {
                format,
                rows: rows..rows + part_rows,
                start: bytes,
                panel_bytes,
                stride: panel_bytes,
            });
            rows += part_rows;
            bytes += part_rows.div_ceil(PANEL_ROWS) * panel_bytes;
            if bytes > MAX_BYTES {
                return Err(PackError::TooLarge {
                    kind,
                    rows,
                    columns,
                });
            }
        }
        if rows == 0 {
            return Err(PackError::Empty { rows, columns });
        }
        if let ([first, second], true) = (&mut segments[..], pair) {
            second.start = first.panel_bytes;
            first.stride += second.panel_bytes;
            second.stride = first.stride;
        }
        let data = arena.take(bytes).map_err(|error| PackError::Memory {
            bytes,
            reason: error.kind(),
        })?;
        let mut matrix = Self {
            rows,
            columns,
            pair,
            segments,
            data,
        };
        for (segment, &(kind, _, data)) in matrix.segments.iter().zip(parts) {
            let target = &mut matrix.data.as_mut_slice()[segment.start..];
            let row_bytes = columns / kind.block_size() * kind.block_bytes();
            let panels = data.chunks(row_bytes * PANEL_ROWS);
            for (rows, panel) in panels.zip(target.chunks_mut(segment.stride)) {
                let panel = &mut panel[..segment.panel_bytes];
                let mut views = [&[][..]; PANEL_ROWS];
                let count = rows.len() / row_bytes;
                for (view, row) in views.iter_mut().zip(rows.chunks_exact(row_bytes)) {
                    *view = row;
                }
                pack_panel(kind, columns, &views[..count], panel);
            }
        }
        Ok(matrix)
    }

    /// Bytes that a tensor has once packed.
    pub fn packed_bytes(kind: TensorType, rows: usize, columns: usize) -> usize {
        let panels = rows.div_ceil(PANEL_ROWS);
        Format::of(kind).panel_bytes(columns).saturating_mul(panels)
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Outputs of a product: the rows, of a pair half of them.
    pub fn outputs(&self) -> usize {
        if self.pair { self.rows / 2 } else { self.rows }
    }

    /// Input features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes of packed weights.
    pub fn bytes(&self) -> usize {
        self.data.bytes()
    }

    /// The packed weights, in the order in which products read them.
    pub fn memory(&self) -> &[u8] {
        // SAFETY: a packed matrix is never written again.
        unsafe { self.data.as_slice() }
    }

    /// The forms of activations that a product with this matrix reads.
    pub fn form(&self) -> ActivationForm {
        let mut form = ActivationForm::default();
        for segment in &self.segments {
            match segment.format {
                Format::Integer(..) => form.integer = true,
                Format::Float(_) => form.float = true,
            }
        }
        form
    }

    /// The `share`-th of `shares` ranges of outputs that together cover all, whole tiles each, of about
    /// equal size in bytes.
    ///
    /// # Panics
    /// If `share >= shares`.
    pub fn share(&self, share: usize, shares: usize) -> Range<usize> {
        assert!(share < shares, "share {share} of {shares}");
        let outputs = self.outputs();
        let edge = |part: usize| {
            if self.pair {
                let tiles = outputs * part / shares / ROW_TILE;
                return tiles * ROW_TILE;
            }
            let goal = (self.bytes() as u128 * part as u128 / shares as u128) as usize;
            let last = self
                .segments
                .iter()
                .rev()
                .find(|segment| segment.start <= goal);
            last.map_or(0, |segment| {
                let tile_bytes = segment.panel_bytes * (ROW_TILE / PANEL_ROWS);
                let tiles = (goal - segment.start + tile_bytes / 2) / tile_bytes;
                (segment.rows.start + tiles * ROW_TILE).min(segment.rows.end)
            })
        };
        edge(share)..if share + 1 == shares {
            outputs
        } else {
            edge(share + 1)
        }
    }

    /// Writes the exact values of one row (as f32, like the file's own definition of its types).
    ///
    /// # Panics
    /// If `row` is out of range or `out` is not `columns` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "columns of a row");
        let segment = self
            .segments
            .iter()
            .find(|segment| segment.rows.contains(&row));
        let Some(segment) = segment else {
            panic!("row {row} of {}", self.rows)
        };
        let place = row - segment.rows.start;
        let (panel, lane) = (place / PANEL_ROWS, place % PANEL_ROWS);
        // SAFETY: a packed matrix is never written again.
        let data = unsafe { self.data.as_slice() };
        let panel = &data[segment.start + panel * segment.stride..][..segment.panel_bytes];
        match segment.format {
            Format::Float(float) => {
                for (column, value) in out.iter_mut().enumerate() {
                    *value = float.value(panel, column * PANEL_ROWS + lane);
                }
            }
            Format::Integer(width, scaling) => {
                for (group, values) in out.chunks_exact_mut(GROUP).enumerate() {
                    let place = scaling.place(width, group);
                    let tile = &panel[place.codes..][..width.tile_bytes()];
                    let scale = scaling.row(panel, place, lane);
                    let offset = scaling.offset();
                    for (at, value) in values.iter_mut().enumerate() {
                        let code = width.code(tile, at / QUAD, lane * QUAD + at % QUAD);
                        let code = i32::from(code) - offset;
                        *value = scale.halves[at / 16] * code as f32 + scale.bias;
                    }
                }
            }
        }
    }

    /// Both matrices of a pair.
    pub(super) fn pair(&self) -> Option<&[Segment]> {
        self.pair.then_some(&self.segments[..])
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The start of a panel.
    ///
    /// # Safety
    /// `panel` is one of the segment's, and the segment one of this matrix.
    pub(super) unsafe fn panel(&self, segment: &Segment, panel: usize) -> *const u8 {
        // SAFETY: inside the buffer by the contract.
        unsafe {
            self.data
                .pointer()
                .add(segment.start + panel * segment.stride)
        }
    }
}

fn check(kind: TensorType, rows: usize, columns: usize, data: &[u8]) -> Result<(), PackError> {
    if rows == 0 || columns == 0 {
        return Err(PackError::Empty { rows, columns });
    }
    let block = kind.block_size();
    if !columns.is_multiple_of(block) {
        return Err(PackError::Columns {
            kind,
            columns,
            block,
        });
    }
    let too_large = PackError::TooLarge {
        kind,
        rows,
        columns,
    };
    let row_bytes = (columns / block).checked_mul(kind.block_bytes());
    let expected = row_bytes.and_then(|row| row.checked_mul(rows));
    let expected = expected
        .filter(|bytes| *bytes <= MAX_BYTES - LINE)
        .ok_or(too_large)?;
    if data.len() != expected {
        let actual = data.len();
        return Err(PackError::Length {
            kind,
            rows,
            columns,
            expected,
            actual,
        });
    }
    Ok(())
}
