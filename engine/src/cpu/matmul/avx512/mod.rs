//! Kernels for AVX-512 with VNNI.
//!
//! One 512-bit register is a line of codes: sixteen output rows by four columns, which `vpdpbusd`
//! multiplies with four columns of one token, broadcast from memory. The order of every output is that
//! of `portable`.

mod codes;
mod fetch;
mod float;
mod integer;
mod quantize;
mod scales;

pub(super) use float::float;
pub(super) use integer::integer;
pub(super) use quantize::quantize_row;
