//! The CPU backend: packed weights, the step over a KV region, and the kernels of its operations.
//!
//! Every result is the same bits on every instruction set, thread count and batch. Knows nothing of
//! networks, requests or scheduling.

// Kernels are inlined into one function per instruction set, or they are not vector code; rows and
// vectors of one block share an index; pages are aligned as `KvMemory` promises.
#![allow(
    clippy::inline_always,
    clippy::needless_range_loop,
    clippy::cast_ptr_alignment
)]

mod attention;
mod blocks;
mod buffers;
pub mod ceilings;
mod elementwise;
mod engine;
mod lanes;
mod mathematics;
pub mod matmul;
mod memory;
mod model;
mod operations;
mod pages;
mod plan;
mod rope;
mod sampler;
mod shared_rows;
#[cfg(test)]
mod tests;
mod threads;

pub use engine::CpuEngine;
#[cfg(target_arch = "x86_64")]
pub(crate) use lanes::bf16_unit_is_exact;
pub use memory::{Arena, anonymous_memory};
pub use model::CpuModel;
