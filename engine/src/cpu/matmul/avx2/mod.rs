//! Kernels for AVX2 with FMA and F16C, and for AVX-VNNI beside them.
//!
//! A panel is two halves of eight output rows. The order of every output is that of `portable`.

mod codes;
mod float;
mod integer;
mod quantize;
mod scales;

pub(super) use float::float;
pub(super) use integer::integer;
pub(super) use quantize::quantize_row;
