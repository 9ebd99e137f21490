//! Activations in the forms that products take, row by row.
//!
//! The integer forms are those of `quantize`; the float form is the values themselves. What a row becomes
//! depends on that row alone.
//!
//! Knows nothing of weights or of how threads divide the rows.

use std::{io, ops::Range, sync::atomic::AtomicU64};

use super::format::{Format, GROUP, LINE};
use super::kernel::SecondDigits;
use super::quantize::{GROUP_BYTES, MARKED_ROWS, Target, quantize_row};
use crate::{
    Isa,
    cpu::memory::{Arena, Buffer},
};

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
    /// Words of `quantize`'s marks: for every 64 rows one of each group.
    marks: Buffer,
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
        // An odd number of lines from row to row, so that rows do not share cache sets.
        let odd_lines = |bytes: usize| (bytes.div_ceil(LINE) | 1) * LINE;
        let groups = max_columns.div_ceil(GROUP);
        let integer_stride = odd_lines(2 * groups * GROUP_BYTES);
        let float_stride = odd_lines(max_columns * 4);
        let size = |wanted: bool, stride: usize| if wanted { max_rows * stride } else { 0 };
        let mark_bytes = max_rows.div_ceil(MARKED_ROWS) * groups * size_of::<AtomicU64>();
        Ok(Self {
            max_rows,
            max_columns,
            forms,
            integer: arena.take(size(forms.integer, integer_stride))?,
            integer_stride,
            marks: arena.take(mark_bytes)?,
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
        self.integer.bytes() + self.marks.bytes() + self.float.bytes()
    }

    /// Writes the wanted forms of `rows` from `values` (`rows.len() × columns`, row after row). A row
    /// with a value that is not finite gives NaN in every output that it takes part in.
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
                // SAFETY: the row is in range and this caller's alone; it has room for the groups, and
                // the instruction set is available.
                unsafe { quantize_row(isa, values, self.target(row)) };
            }
            if form.float {
                // SAFETY: as above; the row has room for the columns.
                unsafe {
                    let target = self.float_row(row);
                    target.copy_from_nonoverlapping(values.as_ptr(), columns);
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

    /// Bytes that a product with matrices of `form` reads of a row, at least one.
    pub(super) fn row_bytes(form: ActivationForm, columns: usize) -> usize {
        let groups = columns.div_ceil(GROUP);
        let integer = usize::from(form.integer) * groups * GROUP_BYTES;
        (integer + usize::from(form.float) * columns * 4).max(1)
    }

    /// Whether products that read `form` can read this.
    pub(super) fn holds(&self, form: ActivationForm) -> bool {
        self.forms.union(form) == self.forms
    }

    /// The row `row` in the form that weights of `format` read, and the bytes to the next one.
    ///
    /// # Safety
    /// `row` is in range and the form is held.
    pub(super) unsafe fn rows_from(&self, format: Format, row: usize) -> (*const u8, usize) {
        // SAFETY: by the contract.
        unsafe {
            match format {
                Format::Integer(..) => (self.integer_row(row), self.integer_stride),
                Format::Float(_) => (self.float_row(row).cast(), self.float_stride),
            }
        }
    }

    /// Where second digits are.
    pub(super) fn second_digits(&self) -> SecondDigits {
        SecondDigits {
            low: self.groups() * GROUP_BYTES,
            marks: self.marks.pointer().cast(),
            stride: self.groups(),
        }
    }

    /// Groups that fit.
    fn groups(&self) -> usize {
        self.max_columns.div_ceil(GROUP)
    }

    /// # Safety
    /// `row` is in range and the integer form is held.
    unsafe fn target(&self, row: usize) -> Target<'_> {
        let groups = self.groups();
        // SAFETY: the words of the row's neighbours, zero or written as atomic ones only.
        let marks = unsafe {
            let words = self.marks.pointer().cast::<AtomicU64>();
            std::slice::from_raw_parts(words.add(row / MARKED_ROWS * groups), groups)
        };
        Target {
            // SAFETY: by the contract.
            row: unsafe { self.integer_row(row) },
            low: groups * GROUP_BYTES,
            marks,
            bit: 1 << (row % MARKED_ROWS),
        }
    }

    /// # Safety
    /// `row` is in range and the integer form is held.
    unsafe fn integer_row(&self, row: usize) -> *mut u8 {
        // SAFETY: the row lies inside the buffer.
        unsafe { self.integer.pointer().add(row * self.integer_stride) }
    }

    /// # Safety
    /// `row` is in range and the float form is held.
    unsafe fn float_row(&self, row: usize) -> *mut f32 {
        // SAFETY: the row lies inside the buffer, whose rows are aligned to lines.
        unsafe { self.float.pointer().add(row * self.float_stride).cast() }
    }
}
