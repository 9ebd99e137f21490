//! Tests over the crate's public surface.
mod dequantize;
mod round_trip;
