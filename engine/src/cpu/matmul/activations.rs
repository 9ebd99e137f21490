//! Activations in the forms that products take, row by row.
//!
//! Integer form: per group of 32 columns, symmetric 8-bit codes `round(x / scale)` with
//! `scale = max|x| / 127`, ties to even. Rows lie in tiles of six, so that a kernel reaches six rows
//! from one pointer: per group the codes of the six rows, then their scales, `scale × sum of codes`
//! and the sums of the first and the last sixteen codes. Float form: the values, six rows
//! interleaved. A row's form depends on that row alone.
//!
//! Knows nothing of weights or of how threads divide the rows.

use std::ops::Range;

use super::buffer::Buffer;
use super::format::{GROUP, LINE};
use crate::Isa;

/// Rows of a tile: with two panels of weights, what the 32 vector registers of AVX-512 hold.
pub(super) const TILE_ROWS: usize = 6;
/// Bytes of one group of a tile.
pub(super) const BLOCK_BYTES: usize = TILE_ROWS * (GROUP + 12);
/// Offset of the six scales (f32) in a block.
pub(super) const SCALES: usize = TILE_ROWS * GROUP;
/// Offset of the six `scale × sum` (f32).
pub(super) const SCALED_SUMS: usize = SCALES + TILE_ROWS * 4;
/// Offset of the six pairs of sums (2 × i16).
pub(super) const SUMS: usize = SCALED_SUMS + TILE_ROWS * 4;
/// Groups whose largest magnitude is below this count as zero (its reciprocal times 127 is finite).
pub(super) const TINY: f32 = 1e-30;

/// Which forms of the activations a product reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivationForm {
    /// 8-bit codes per group, for integer weights.
    pub integer: bool,
    /// f32 values, for float weights.
    pub float: bool,
}

impl ActivationForm {
    /// What either needs.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self {
            integer: self.integer || other.integer,
            float: self.float || other.float,
        }
    }
}

/// Preallocated activations of up to `max_rows` rows (tokens) of up to `max_columns` columns.
#[derive(Debug)]
pub struct Activations {
    max_rows: usize,
    max_columns: usize,
    forms: ActivationForm,
    integer: Buffer,
    integer_stride: usize,
    float: Buffer,
    float_stride: usize,
}

impl Activations {
    /// Memory for the given forms.
    pub fn new(max_rows: usize, max_columns: usize, forms: ActivationForm) -> Self {
        let tiles = max_rows.div_ceil(TILE_ROWS);
        // An odd number of lines from tile to tile, so that tiles do not share cache sets.
        let odd_lines = |bytes: usize| (bytes.div_ceil(LINE) | 1) * LINE;
        let integer_stride = odd_lines(max_columns.div_ceil(GROUP) * BLOCK_BYTES);
        let float_stride = odd_lines(max_columns * TILE_ROWS * 4);
        let size = |wanted: bool, stride: usize| if wanted { tiles * stride } else { 0 };
        Self {
            max_rows,
            max_columns,
            forms,
            integer: Buffer::new(size(forms.integer, integer_stride)),
            integer_stride,
            float: Buffer::new(size(forms.float, float_stride)),
            float_stride,
        }
    }

    /// Rows that fit.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Columns that fit.
    pub fn max_columns(&self) -> usize {
        self.max_columns
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.integer.bytes() + self.float.bytes()
    }

    /// Writes the wanted forms of `rows` from `values` (`rows.len() × columns`, row after row). A row
    /// with a value that is not finite gives NaN in every output that it takes part in. Threads that
    /// take whole tiles of [`super::TOKEN_TILE`] rows do not share cache lines.
    ///
    /// # Safety
    /// While this runs no other thread reads or writes these rows of this object.
    ///
    /// # Panics
    /// If rows, columns or form exceed what was allocated, or `values` has another length.
    pub unsafe fn quantize_rows(
        &self,
        isa: Isa,
        form: ActivationForm,
        rows: Range<usize>,
        columns: usize,
        values: &[f32],
    ) {
        assert!(
            rows.end <= self.max_rows,
            "row {} of {}",
            rows.end,
            self.max_rows
        );
        assert!(
            columns <= self.max_columns,
            "{columns} columns of {}",
            self.max_columns
        );
        assert_eq!(
            values.len(),
            rows.len() * columns,
            "values of {} rows",
            rows.len()
        );
        assert_eq!(
            self.forms.union(form),
            self.forms,
            "forms that were allocated"
        );
        assert!(
            !form.integer || columns.is_multiple_of(GROUP),
            "{columns} columns"
        );
        assert!(Isa::available().contains(&isa), "{isa:?} on this machine");
        if columns == 0 {
            return;
        }
        for (row, values) in rows.zip(values.chunks_exact(columns)) {
            if form.integer {
                // SAFETY: the row is in range and this caller's alone.
                let tile = unsafe { self.integer_row(row) };
                // SAFETY: `tile` has `columns / GROUP` blocks; the instruction set is available.
                unsafe { quantize_row(isa, values, tile, row % TILE_ROWS) };
            }
            if form.float {
                // SAFETY: as above; `columns` values of six rows from the tile's start.
                let tile = unsafe { self.float_tile(row / TILE_ROWS) }.cast_mut();
                for (column, &value) in values.iter().enumerate() {
                    // SAFETY: in the tile, this row's place.
                    unsafe { *tile.add(column * TILE_ROWS + row % TILE_ROWS) = value };
                }
            }
        }
    }

    /// As [`Activations::quantize_rows`], with exclusive access.
    ///
    /// # Panics
    /// As there.
    pub fn quantize(
        &mut self,
        isa: Isa,
        form: ActivationForm,
        rows: Range<usize>,
        columns: usize,
        values: &[f32],
    ) {
        // SAFETY: `&mut self`.
        unsafe { self.quantize_rows(isa, form, rows, columns, values) }
    }

    /// Whether products that read `form` can read this.
    pub(super) fn holds(&self, form: ActivationForm) -> bool {
        self.forms.union(form) == self.forms
    }

    /// # Safety
    /// `row` is in range and the form is held.
    unsafe fn integer_row(&self, row: usize) -> *mut u8 {
        // SAFETY: the tile lies inside the buffer.
        unsafe {
            self.integer
                .pointer()
                .add(row / TILE_ROWS * self.integer_stride)
        }
    }

    /// # Safety
    /// `tile` is in range and the form is held.
    pub(super) unsafe fn integer_tile(&self, tile: usize) -> *const u8 {
        // SAFETY: the tile lies inside the buffer.
        unsafe { self.integer.pointer().add(tile * self.integer_stride) }
    }

    /// # Safety
    /// `tile` is in range and the form is held.
    pub(super) unsafe fn float_tile(&self, tile: usize) -> *const f32 {
        // SAFETY: the tile lies inside the buffer, which is aligned to lines.
        unsafe { self.float.pointer().add(tile * self.float_stride).cast() }
    }
}

/// One quantised group of one row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantized {
    pub(super) codes: [i8; GROUP],
    pub(super) scale: f32,
    /// Sums of the first and the last sixteen codes.
    pub(super) halves: [i16; 2],
}

/// Quantises one row into lane `lane` of the tile at `tile`.
///
/// # Safety
/// `tile` has room for `values.len() / GROUP` blocks, this lane is the caller's alone, and the
/// instruction set is available.
unsafe fn quantize_row(isa: Isa, values: &[f32], tile: *mut u8, lane: usize) {
    match isa {
        // SAFETY: by the contract.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { super::avx512::quantize_row(values, tile, lane) },
        // SAFETY: by the contract.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { super::avx2::quantize_row(values, tile, lane) },
        _ => {
            for (group, values) in values.chunks_exact(GROUP).enumerate() {
                // SAFETY: inside the block of this group.
                unsafe { store(tile.add(group * BLOCK_BYTES), lane, &quantize_group(values)) };
            }
        }
    }
}

/// Writes one row's part of a block.
///
/// # Safety
/// `block` has `BLOCK_BYTES` bytes, of which this lane's are the caller's alone.
#[inline]
pub(super) unsafe fn store(block: *mut u8, lane: usize, group: &Quantized) {
    let sum = i32::from(group.halves[0]) + i32::from(group.halves[1]);
    // SAFETY: all offsets are below `BLOCK_BYTES`; four-byte values are aligned, as blocks are
    // multiples of 8 bytes from an aligned start.
    unsafe {
        block
            .add(lane * GROUP)
            .cast::<[i8; GROUP]>()
            .write(group.codes);
        block
            .add(SCALES + lane * 4)
            .cast::<f32>()
            .write(group.scale);
        block
            .add(SCALED_SUMS + lane * 4)
            .cast::<f32>()
            .write(group.scale * sum as f32);
        block
            .add(SUMS + lane * 4)
            .cast::<[i16; 2]>()
            .write(group.halves);
    }
}

/// Codes, scale and sums of one group.
fn quantize_group(values: &[f32]) -> Quantized {
    // As integers, magnitudes order like floats, with infinities and NaN above everything finite.
    let largest = values
        .iter()
        .fold(0, |largest, x| (x.to_bits() & 0x7fff_ffff).max(largest));
    let mut group = Quantized {
        codes: [0; GROUP],
        scale: 0.0,
        halves: [0; 2],
    };
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        group.scale = f32::NAN;
    } else if largest >= TINY {
        group.scale = largest / 127.0;
        let inverse = 127.0 / largest;
        for (at, (code, value)) in group.codes.iter_mut().zip(values).enumerate() {
            *code = (value * inverse).round_ties_even() as i8;
            group.halves[at / 16] += i16::from(*code);
        }
    }
    group
}
