//! A model with its KV region, ready to step.
#![allow(unsafe_code)] // Copies pages that the batch says are the step's own.

use std::sync::Arc;

use baton_kv_cache::{KvLayout, KvMemory};
use baton_sampling::Sampler;

use super::{
    buffers::Buffers,
    model::CpuModel,
    operations::CpuOperations,
    pages::Pages,
    plan::{Limits, Plan},
    sampler::sampler,
    threads::Threads,
};
use crate::{Batch, CpuOptions, EngineError, Isa, Logits, StepEngine, model};

/// Most tokens of a page.
const MAX_PAGE_SIZE: u32 = 256;
/// Alignment that [`KvMemory`] promises.
const REGION_ALIGNMENT: usize = 64;

/// A model with its KV region, ready to step.
pub struct CpuEngine {
    pub(super) model: Arc<CpuModel>,
    pub(super) pages: Pages,
    pub(super) isa: Isa,
    pub(super) threads: Threads,
    pub(super) buffers: Buffers,
    pub(super) plan: Plan,
}

impl CpuEngine {
    /// Puts model and region together, starts the compute threads and allocates what steps need.
    ///
    /// # Errors
    /// A region smaller than the layout, a layout that is not this model's, options out of range, or
    /// threads that the system refuses.
    pub fn new(
        model: Arc<CpuModel>,
        layout: KvLayout,
        memory: Arc<dyn KvMemory>,
        options: &CpuOptions,
    ) -> Result<Self, EngineError> {
        options.validate()?;
        check_region(&model, &layout, &*memory)?;
        let isa = options.resolve_isa()?;
        let config = &model.config;
        let limits = Limits {
            max_tokens: options.max_step_tokens,
            max_logits: options.max_step_rows,
            context_length: config.context_length,
            vocabulary: config.vocabulary,
            group: (config.heads / config.kv_heads) as usize,
            threads: options.threads,
        };
        let threads = Threads::new(options.threads, &options.cpus)?;
        let buffers =
            Buffers::new(config, model.forms, &limits).map_err(|source| EngineError::System {
                what: "working memory of the engine".into(),
                source,
            })?;
        let plan = Plan::new(limits, &layout);
        Ok(Self {
            pages: Pages::new(layout, memory),
            isa,
            threads,
            buffers,
            plan,
            model,
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

impl StepEngine for CpuEngine {
    fn vocabulary(&self) -> usize {
        self.model.config.vocabulary as usize
    }

    fn context_length(&self) -> u32 {
        self.model.config.context_length
    }

    fn sampler(&self) -> &'static dyn Sampler {
        sampler(self.isa)
    }

    fn step(
        &mut self,
        batch: &Batch<'_>,
        on_layer: &mut dyn FnMut(u32),
    ) -> Result<Logits<'_>, EngineError> {
        self.plan.prepare(batch)?;
        self.threads.adopt_caller()?;
        for &(from, to) in batch.copies {
            // SAFETY: the plan has checked both pages; that `to` is the step's own is the batch's
            // contract.
            unsafe { self.pages.copy(from, to) };
        }
        let mut operations = CpuOperations::new(
            &self.model,
            &self.pages,
            self.isa,
            batch,
            &self.plan,
            &mut self.threads,
            &mut self.buffers,
        );
        model::forward(&self.model.weights, &mut operations, on_layer);
        let vocabulary = self.vocabulary();
        let values = &self.buffers.heads.values_mut()[..self.plan.logits.len() * vocabulary];
        Ok(Logits { values, vocabulary })
    }
}

impl std::fmt::Debug for CpuEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuEngine")
            .field("model", &self.model)
            .field("layout", self.pages.layout())
            .field("isa", &self.isa)
            .field("threads", &self.threads.count())
            .finish_non_exhaustive()
    }
}

fn check_region(
    model: &CpuModel,
    layout: &KvLayout,
    memory: &dyn KvMemory,
) -> Result<(), EngineError> {
    let refuse = |reason: String| Err(EngineError::Region(reason));
    let expected = model.kv_layout(layout.page_size, layout.pages, layout.dtype);
    if *layout != expected {
        return refuse(format!(
            "layout {layout:?} is not the model's, {expected:?}"
        ));
    }
    if !(1..=MAX_PAGE_SIZE).contains(&layout.page_size) {
        return refuse(format!(
            "page size {} is outside 1..={MAX_PAGE_SIZE}",
            layout.page_size
        ));
    }
    // A page is bounded by the model's checked shapes; only the number of pages is not.
    let needed = layout.page_bytes() as u128 * u128::from(layout.pages);
    if layout.pages == 0 || needed > memory.len() as u128 {
        return refuse(format!(
            "{} pages need {needed} bytes, the region has {}",
            layout.pages,
            memory.len()
        ));
    }
    if !memory
        .base()
        .as_ptr()
        .addr()
        .is_multiple_of(REGION_ALIGNMENT)
    {
        return refuse(format!(
            "the region is not aligned to {REGION_ALIGNMENT} bytes"
        ));
    }
    Ok(())
}
