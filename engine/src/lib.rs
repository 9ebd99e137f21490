//! Model execution over paged KV. Knows nothing of networks, requests or scheduling.
//!
//! A step's way: [`StepEngine::step`] → the batch is checked and planned (`cpu::plan`) → the family
//! runs its layers (`model`) over the backend's operations (`cpu::operations`) → logits of the rows
//! that asked.

pub mod cpu;
mod error;
mod model;
mod options;
mod step;

pub use cpu::{CpuEngine, CpuModel, anonymous_memory};
pub use error::EngineError;
pub use options::{CpuOptions, Isa};
pub use step::{Batch, LogitRows, Logits, SequenceSlice, StepEngine};
