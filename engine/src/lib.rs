//! Model execution over paged KV. Knows nothing of networks, requests or scheduling.

mod step;

use std::sync::Arc;

use baton_kv_cache::{KvDtype, KvLayout, KvMemory};
use baton_model_file::ModelFile;

pub use step::{Batch, Logits, SequenceSlice, StepEngine};

/// What can go wrong in loading or in a step.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A slice of a batch is malformed.
    #[error("slice {slice}: {reason}")]
    BadSlice {
        /// Index in the batch.
        slice: usize,
        /// What is wrong, with the value.
        reason: String,
    },
}

/// Settings of the CPU engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuOptions {
    /// Compute threads, the stepping thread included; at least 1.
    pub threads: usize,
    /// CPUs to pin threads to (empty: no pinning).
    pub cpus: Vec<usize>,
    /// Most tokens in a step.
    pub max_step_tokens: usize,
    /// Most logits rows in a step.
    pub max_step_rows: usize,
    /// Force an instruction set (`None`: the best that the machine has).
    pub isa: Option<Isa>,
}

/// Instruction sets with their own kernels. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// AVX2 + FMA.
    Avx2,
    /// AVX-512 with VNNI.
    Avx512,
}

/// The weights of a model, packed for the CPU.
pub struct CpuModel {}

/// A model with its KV region, ready to step.
pub struct CpuEngine {}

impl CpuModel {
    /// Reads and packs all weights; `progress(done_bytes, total_bytes)`.
    ///
    /// # Errors
    /// Missing or malformed tensors, all named.
    pub fn load(
        file: &ModelFile,
        options: &CpuOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        let _ = (file, options, progress);
        unimplemented!()
    }
    /// Layout of a region of `pages` pages for this model.
    pub fn kv_layout(&self, page_size: u32, pages: u32, dtype: KvDtype) -> KvLayout {
        let _ = (page_size, pages, dtype);
        unimplemented!()
    }
    /// Name of the order of values inside a piece, for the fingerprint.
    pub fn layout_id(&self) -> &'static str {
        "layer-major/1"
    }
    /// Name of the arithmetic, for the fingerprint: equal ids give equal bits.
    pub fn numerics_id(&self) -> &'static str {
        "cpu/1"
    }
}

impl CpuEngine {
    /// Puts model and region together.
    ///
    /// # Errors
    /// A region smaller than the layout, or a layout that is not this model's.
    pub fn new(
        model: CpuModel,
        layout: KvLayout,
        memory: Arc<dyn KvMemory>,
        options: &CpuOptions,
    ) -> Result<Self, EngineError> {
        let _ = (model, layout, memory, options);
        unimplemented!()
    }
}

/// Anonymous memory of this process as a KV region (no transport shares it).
///
/// # Errors
/// The system refuses the allocation.
pub fn anonymous_memory(bytes: usize) -> Result<Arc<dyn KvMemory>, EngineError> {
    let _ = bytes;
    unimplemented!()
}
