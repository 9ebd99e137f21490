//! Exact products of packed weights with rows of activations.
//!
//! Integer weights stay integer: [`PackedMatrix`] keeps a file's codes and scales in panels of sixteen
//! output rows, [`Activations`] holds the tokens' rows as 8-bit groups, and [`matmul`] accumulates every
//! output in one fixed order (stated in `portable`), so that an output's bits depend on its weight row
//! and its activation row alone: not on the number of tokens, the range of rows, or the instruction set.
//!
//! Nothing here knows models, threads or pages.
// Vector kernels, and outputs that several threads write in disjoint parts. Intrinsics come by the
// dozen; buffers are aligned to lines and blocks to 8 bytes.
#![allow(unsafe_code, clippy::wildcard_imports, clippy::cast_ptr_alignment)]

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod format;
mod gangs;
mod kernel;
mod pack;
mod packed;
mod portable;
mod product;
mod quantize;
#[cfg(test)]
mod tests;

pub use activations::{ActivationForm, Activations};
pub use packed::{PackError, PackedMatrix};
pub use product::{OutputView, matmul};

/// Best alignment of ranges of output rows: a panel.
pub const ROW_TILE: usize = format::PANEL_ROWS;
