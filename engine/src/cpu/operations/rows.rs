//! What is done to single rows before a product. It must not know whose rows they are.

use super::super::{
    elementwise,
    matmul::{Activations, PackedMatrix},
};
use crate::Isa;

/// How a row of the stream becomes the input of a product.
pub(super) struct Normed<'a> {
    /// What is added to the stream first.
    pub(super) delta: Option<&'a [f32]>,
    /// Of the norm.
    pub(super) weight: &'a [f32],
    pub(super) epsilon: f32,
    /// The product's matrix.
    pub(super) next: &'a PackedMatrix,
}

/// Row `at` of the activations = the norm of a row, which goes through `scratch`.
///
/// # Safety
/// Nobody else uses this row of the activations.
pub(super) unsafe fn norm_row(
    isa: Isa,
    stream: &mut [f32],
    how: &Normed<'_>,
    scratch: &mut [f32],
    activations: &Activations,
    at: usize,
) {
    let columns = how.next.columns();
    elementwise::add_and_norm(
        isa,
        stream,
        how.delta,
        how.weight,
        columns,
        how.epsilon,
        scratch,
    );
    // SAFETY: the caller's promise.
    unsafe { quantize_row(isa, scratch, how.next, activations, at) };
}

/// Row `at` of the activations = the first values of `row`, as many as `next` has columns.
///
/// # Safety
/// Nobody else uses this row of the activations.
pub(super) unsafe fn quantize_row(
    isa: Isa,
    row: &[f32],
    next: &PackedMatrix,
    activations: &Activations,
    at: usize,
) {
    let columns = next.columns();
    let values = &row[..columns];
    // SAFETY: the caller's promise.
    unsafe { activations.quantize_rows(isa, next.form(), at..at + 1, columns, values) };
}
