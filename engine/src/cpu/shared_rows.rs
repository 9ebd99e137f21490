//! A matrix of f32 that the tasks of one operation fill together, each its own part.
//!
//! It must not know what the rows mean.
#![allow(unsafe_code)] // Threads write disjoint parts of one allocation.

use std::{io, marker::PhantomData};

use super::{
    lanes::LANES,
    memory::{Arena, Buffer},
};

/// Owned rows, zeroed, each padded to whole vectors, with one spare vector at the end.
pub(crate) struct Rows {
    values: Buffer,
    count: usize,
    stride: usize,
}

/// Rows lent to the tasks of one operation.
#[derive(Clone, Copy)]
pub(crate) struct SharedRows<'a> {
    base: *mut f32,
    rows: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: access goes through unsafe methods whose callers keep threads apart.
unsafe impl Send for SharedRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedRows<'_> {}

impl Rows {
    /// `rows` rows of at least `columns` values, from `arena`, in memory for at least `values` of them.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub(crate) fn within(
        arena: &mut Arena,
        rows: usize,
        columns: usize,
        values: usize,
    ) -> io::Result<Self> {
        let stride = (columns.div_ceil(LANES) | 1) * LANES;
        let values = values.max(rows * stride + LANES);
        Ok(Self {
            values: arena.take(values * size_of::<f32>())?,
            count: rows,
            stride,
        })
    }

    /// All values, rows and what lies between and after them.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        self.values.floats_mut()
    }

    /// Lends the rows to tasks.
    pub(crate) fn share(&mut self) -> SharedRows<'_> {
        SharedRows {
            base: self.values.pointer().cast::<f32>(),
            rows: self.count,
            stride: self.stride,
            lifetime: PhantomData,
        }
    }
}

impl<'a> SharedRows<'a> {
    /// First value.
    pub(crate) fn base(self) -> *mut f32 {
        self.base
    }

    /// First value of a row, from which all later ones can be reached; `last` is the last that is asked
    /// for.
    pub(crate) fn pointer(self, row: usize, last: usize) -> *mut f32 {
        assert!(row <= last && last < self.rows);
        // SAFETY: in bounds.
        unsafe { self.base.add(row * self.stride) }
    }

    /// Values from one row to the next.
    pub(crate) fn stride(self) -> usize {
        self.stride
    }

    /// Number of rows.
    pub(crate) fn rows(self) -> usize {
        self.rows
    }

    /// A row and the [`LANES`] values after it (vector loads may run over the end).
    ///
    /// # Safety
    /// Nobody writes these values for as long as the slice lives.
    pub(crate) unsafe fn row(self, row: usize) -> &'a [f32] {
        assert!(row < self.rows);
        // SAFETY: in bounds (the allocation ends with a spare vector), unwritten by promise.
        unsafe { std::slice::from_raw_parts(self.base.add(row * self.stride), self.stride + LANES) }
    }

    /// A row, to write.
    ///
    /// # Safety
    /// Nobody else reads or writes this row for as long as the slice lives.
    pub(crate) unsafe fn row_mut(self, row: usize) -> &'a mut [f32] {
        assert!(row < self.rows);
        // SAFETY: in bounds, exclusive by promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.stride), self.stride) }
    }
}
