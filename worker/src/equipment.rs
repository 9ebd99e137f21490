//! An engine over its KV region, ready to step, and what both are to others.
//!
//! Loading a model is one way to get it; anything that steps can be put in its place.

use std::sync::Arc;

use baton_engine::{CpuEngine, CpuModel, CpuOptions, StepEngine, anonymous_memory};
use baton_kv_cache::{KvLayout, KvMemory};
use baton_kv_transfer::{SharedMemory, TransportChoice, shared_memory};
use baton_model_file::ModelFile;
use baton_proto::domain::{Fingerprint, WorkerRole};
use baton_scheduler::{SequenceError, StepLoop};
use baton_text::TextModel;

use crate::fingerprint::{Digests, fingerprint};
use crate::worker::PROMPT_ROWS;
use crate::{WorkerError, WorkerOptions, sizing};

/// The memory behind a worker's pages.
#[derive(Debug, Clone)]
pub struct KvRegion {
    /// Its shape.
    pub layout: KvLayout,
    /// The region.
    pub memory: Arc<dyn KvMemory>,
    /// The same region, when senders on this host may map it.
    pub shared: Option<Arc<SharedMemory>>,
}

/// Gets a step loop to run: on a thread, unless something else is put in its place.
pub type Drive = Box<dyn FnOnce(StepLoop) -> Result<(), SequenceError> + Send>;

/// What a worker runs on.
pub struct Equipment {
    /// Steps over the region.
    pub engine: Box<dyn StepEngine>,
    /// Runs the engine's step loop.
    pub drive: Drive,
    /// The region.
    pub region: KvRegion,
    /// Compatibility identity.
    pub fingerprint: Fingerprint,
    /// Name of the model.
    pub model: String,
    /// The model's end-of-sequence ids.
    pub eos_ids: Vec<u32>,
}

impl KvRegion {
    /// A region for `layout`: a memfd where senders may write it themselves, else private memory.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub fn new(layout: KvLayout, shareable: bool) -> Result<Self, WorkerError> {
        let bytes = layout.region_bytes();
        if shareable {
            let shared = shared_memory(bytes).map_err(WorkerError::Transfer)?;
            return Ok(Self {
                layout,
                memory: shared.clone(),
                shared: Some(shared),
            });
        }
        Ok(Self {
            layout,
            memory: anonymous_memory(bytes)?,
            shared: None,
        })
    }
}

/// Opens and packs the model of `options` for the CPU; blocks. `progress(done_bytes, total_bytes)`.
///
/// # Errors
/// The model cannot be read, or does not fit.
pub fn load_model(
    options: &WorkerOptions,
    role: WorkerRole,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Equipment, WorkerError> {
    let file = ModelFile::open(&options.model)?;
    for warning in file.warnings() {
        tracing::warn!("{warning}");
    }
    let config = file.config();
    let cpu = CpuOptions {
        threads: options.threads,
        cpus: options.cpus.clone(),
        max_step_tokens: options.token_budget,
        max_step_rows: options.max_batch + PROMPT_ROWS,
        isa: options.isa,
    };
    // The digest reads the whole file once more; beside the packing it costs no time.
    let (model, digests) = std::thread::scope(|scope| {
        let digests = scope.spawn(|| digests(&file));
        let model = CpuModel::load(&file, &cpu, progress);
        let digests = digests
            .join()
            .map_err(|_| WorkerError::Internal("digest thread panicked".into()));
        (model, digests)
    });
    let (model, digests) = (model?, digests??);
    let one_page = model.kv_layout(options.page_size, 1, options.kv_dtype);
    let available = sizing::available_memory();
    let pages = sizing::pages(options.pool, one_page.page_bytes(), available)?;
    let layout = model.kv_layout(options.page_size, pages, options.kv_dtype);
    let fingerprint = fingerprint(
        &digests,
        &layout,
        &config.rope,
        model.layout_id(),
        model.numerics_id(),
    );
    let shareable = role == WorkerRole::Decode && options.transports != TransportChoice::Tcp;
    let region = KvRegion::new(layout, shareable)?;
    let engine = CpuEngine::new(Arc::new(model), layout, region.memory.clone(), &cpu)?;
    Ok(Equipment {
        engine: Box::new(engine),
        drive: Box::new(baton_scheduler::on_thread),
        region,
        fingerprint,
        model: config.name.clone(),
        eos_ids: config.eos_ids.clone(),
    })
}

fn digests(file: &ModelFile) -> Result<Digests, WorkerError> {
    Ok(Digests {
        weights: file.weights_digest()?,
        metadata: file.metadata_digest(),
        tokenizer: TextModel::new(file.text(), file.config())?.digest(),
    })
}
