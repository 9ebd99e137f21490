//! Kernels for AVX2 with FMA and F16C.
//!
//! A panel is two halves of eight output rows. Products of codes and activations go through 16-bit sums,
//! which are widened before they can overflow. The order of every output is that of `portable`.

mod codes;
mod float;
mod integer;
mod quantize;
mod scales;

pub(super) use float::float;
pub(super) use integer::integer;
pub(super) use quantize::quantize_row;
