//! Activations in the forms that products take, row by row.
//!
//! The integer forms are those of `quantize`; the float form is the values, six rows interleaved. What a
//! row becomes depends on that row alone.
//!
//! Knows nothing of weights or of how threads divide the rows.

use std::{io, ops::Range};

use super::format::{GROUP, LINE};
use super::quantize::{BLOCK_BYTES, TILE_ROWS, quantize_row};
use crate::{
    Isa,
    cpu::memory::{Arena, Buffer},
};

/// Which forms of the activations a product reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivationForm {
    /// 8-bit codes per group, for integer weights.
    pub integer: bool,
    /// Two-digit codes per group, for integer weights that want finer activations.
    pub fine: bool,
    /// f32 values, for float weights.
    pub float: bool,
}

impl ActivationForm {
    /// What either needs.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self {
            integer: self.integer || other.integer,
            fine: self.fine || other.fine,
            float: self.float || other.float,
        }
    }
}

/// Preallocated activations of up to `max_rows` rows (tokens) of up to `max_columns` columns.
///
/// The two integer forms share their memory: a row holds the one that was written last.
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
    /// Memory for the given forms, of their own.
    ///
    /// # Panics
    /// If the system refuses the memory.
    pub fn new(max_rows: usize, max_columns: usize, forms: ActivationForm) -> Self {
        Self::within(&mut Arena::default(), max_rows, max_columns, forms)
            .expect("memory for activations")
    }

    /// Memory for the given forms, from `arena`.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub(crate) fn within(
        arena: &mut Arena,
        max_rows: usize,
        max_columns: usize,
        forms: ActivationForm,
    ) -> io::Result<Self> {
        let tiles = max_rows.div_ceil(TILE_ROWS);
        // An odd number of lines from tile to tile, so that tiles do not share cache sets.
        let odd_lines = |bytes: usize| (bytes.div_ceil(LINE) | 1) * LINE;
        let planes = 1 + usize::from(forms.fine);
        let integer_stride = odd_lines(max_columns.div_ceil(GROUP) * BLOCK_BYTES * planes);
        let float_stride = odd_lines(max_columns * TILE_ROWS * 4);
        let size = |wanted: bool, stride: usize| if wanted { tiles * stride } else { 0 };
        Ok(Self {
            max_rows,
            max_columns,
            forms,
            integer: arena.take(size(forms.integer || forms.fine, integer_stride))?,
            integer_stride,
            float: arena.take(size(forms.float, float_stride))?,
            float_stride,
        })
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
    /// If rows, columns or form exceed what was allocated, `values` has another length, or both integer
    /// forms are wanted at once.
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
        let any_integer = form.integer || form.fine;
        assert!(
            !any_integer || columns.is_multiple_of(GROUP),
            "{columns} columns"
        );
        assert!(!(form.integer && form.fine), "one integer form at a time");
        assert!(Isa::available().contains(&isa), "{isa:?} on this machine");
        if columns == 0 {
            return;
        }
        for (row, values) in rows.zip(values.chunks_exact(columns)) {
            if any_integer {
                // SAFETY: the row is in range and this caller's alone.
                let tile = unsafe { self.integer_row(row) };
                // SAFETY: `tile` has room for the blocks of the form; the instruction set is available.
                unsafe { quantize_row(isa, form.fine, values, tile, row % TILE_ROWS) };
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

    /// Bytes of the forms of a tile of rows, at least one.
    pub(super) fn tile_bytes(form: ActivationForm, columns: usize) -> usize {
        let blocks = usize::from(form.integer) + 2 * usize::from(form.fine);
        let integer = columns.div_ceil(GROUP) * BLOCK_BYTES * blocks;
        (integer + usize::from(form.float) * columns * TILE_ROWS * 4).max(1)
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
