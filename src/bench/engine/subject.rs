//! Our engine under measurement: a model with a pool of pages that holds the longest work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::cpu::ceilings::ProductWork;
use baton_engine::{
    Batch, CpuEngine, CpuModel, CpuOptions, EngineError, LogitRows, SequenceSlice, StepEngine,
    anonymous_memory,
};
use baton_kv_cache::{KvLayout, PageIndex};
use baton_model_file::ModelFile;

use crate::exit::Failure;

use super::plan::Plan;
use super::rounds::Contender;
use super::work::{STEPS, Work};

/// Most tokens of one step: prompts run in chunks of as many.
const CHUNK: u32 = 512;
/// Most streams of one step.
const MAX_STREAMS: usize = 32;
const PAGE_SIZE: u32 = 16;
/// A prompt is repeated until this has passed: short ones are too short to be timed once.
pub(super) const LEAST_TIME: Duration = Duration::from_millis(100);

/// The engine with its sequences.
pub(super) struct Subject {
    engine: CpuEngine,
    model: Arc<CpuModel>,
    layout: KvLayout,
    /// Page table of the measured prompts.
    prompt_pages: Vec<PageIndex>,
    /// Page tables of the streams, each as long as the longest work needs.
    streams: Vec<Vec<PageIndex>>,
    prompt: Vec<u32>,
}

/// Packs the weights of `file`.
pub(super) fn load(file: &ModelFile, plan: &Plan) -> Result<Arc<CpuModel>, Failure> {
    let bar = crate::progress::bytes("loading", true);
    let mut tell = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let model = CpuModel::load(file, &options(plan), &mut tell).map_err(|error| failure(&error))?;
    bar.finish_and_clear();
    Ok(Arc::new(model))
}

impl Subject {
    /// An engine with pages for `work`. No page is written yet.
    pub(super) fn new(model: Arc<CpuModel>, plan: &Plan, work: &[Work]) -> Result<Self, Failure> {
        let mut next = 0;
        let mut pages = |tokens: u32| -> Vec<PageIndex> {
            let first = next;
            next += tokens.div_ceil(PAGE_SIZE);
            (first..next).map(PageIndex).collect()
        };
        let longest = |of: fn(&Work) -> Option<u32>| work.iter().filter_map(of).max().unwrap_or(0);
        let prompt = longest(|work| match work {
            Work::Prefill { tokens } => Some(*tokens),
            // What fills the streams.
            Work::Decode { context, .. } => Some(*context),
        });
        let prompt_pages = pages(prompt);
        let streams = longest(|work| match work {
            Work::Decode { streams, .. } => Some(*streams),
            Work::Prefill { .. } => None,
        });
        // A stream is as long as the longest work that it takes part in.
        let streams = (0..streams).map(|stream| {
            let length = work.iter().filter_map(|work| match work {
                Work::Decode { streams, .. } if *streams > stream => Some(work.longest()),
                _ => None,
            });
            pages(length.max().unwrap_or(0))
        });
        let streams: Vec<_> = streams.collect();
        let layout = model.kv_layout(PAGE_SIZE, next, plan.kv_dtype);
        let memory = anonymous_memory(layout.region_bytes()).map_err(|error| failure(&error))?;
        let engine = CpuEngine::new(model.clone(), layout, memory, &options(plan))
            .map_err(|error| failure(&error))?;
        let vocabulary = model.config().vocabulary;
        Ok(Self {
            engine,
            layout,
            prompt_pages,
            streams,
            // No pattern that a model could make anything of, and no two neighbours alike.
            prompt: (0..prompt)
                .map(|at| (1000 + at * 7919) % vocabulary)
                .collect(),
            model,
        })
    }

    /// Fills the streams with a prompt that is computed once and copied.
    pub(super) fn fill(&mut self) -> Result<(), Failure> {
        let prompt = std::mem::take(&mut self.prompt);
        let filled = self.prefill(&prompt).and_then(|()| {
            let copies: Vec<_> = self
                .streams
                .iter()
                .flat_map(|pages| self.prompt_pages.iter().copied().zip(pages.iter().copied()))
                .collect();
            // A step has at least one slice: the prompt's first token, computed again.
            let slice = SequenceSlice {
                token_ids: &prompt[..1],
                position: 0,
                pages: &self.prompt_pages,
                logits: LogitRows::None,
            };
            let batch = Batch {
                copies: &copies,
                slices: &[slice],
            };
            self.engine.step(&batch, &mut |_| {}).map(|_| ())
        });
        self.prompt = prompt;
        filled.map_err(|error| failure(&error))
    }

    /// Instruction set in use.
    pub(super) fn isa(&self) -> &'static str {
        self.engine.isa().name()
    }

    /// Bytes of the pool.
    pub(super) fn pool_bytes(&self) -> u64 {
        self.layout.region_bytes() as u64
    }

    /// The products of `work`: of a whole prompt, or of one decode step.
    pub(super) fn products(&self, work: Work) -> ProductWork {
        match work {
            Work::Prefill { tokens } => chunks(tokens)
                .map(|(tokens, rows)| self.model.product_work(tokens, rows))
                .fold(ProductWork::default(), |sum, chunk| ProductWork {
                    operations: sum.operations + chunk.operations,
                    weight_bytes: sum.weight_bytes + chunk.weight_bytes,
                }),
            Work::Decode { streams, .. } => {
                self.model.product_work(streams as usize, streams as usize)
            }
        }
    }

    /// Multiplications and additions of attention that `work` needs: of a whole prompt, or of one decode
    /// step in the middle of its steps.
    pub(super) fn attention_operations(&self, work: Work) -> f64 {
        let config = self.model.config();
        // A query meets each key and each value of its head, two operations per element.
        let per_key = 4.0 * f64::from(config.layers * config.heads * config.head_dim);
        let keys = match work {
            Work::Prefill { tokens } => f64::from(tokens) * f64::from(tokens + 1) / 2.0,
            Work::Decode { streams, .. } => f64::from(streams) * keys_of_step(work),
        };
        per_key * keys
    }

    /// Bytes of K and V that one step of `work` reads; 0 for prefill, which is not bound by them.
    pub(super) fn kv_bytes(&self, work: Work) -> f64 {
        let token_bytes = self.layout.page_bytes() as f64 / f64::from(self.layout.page_size);
        match work {
            Work::Prefill { .. } => 0.0,
            Work::Decode { streams, .. } => f64::from(streams) * keys_of_step(work) * token_bytes,
        }
    }

    /// Seconds that the products of a prompt of `tokens` tokens take alone.
    pub(super) fn time_products(&mut self, tokens: u32) -> Result<f64, Failure> {
        repeat(|| {
            chunks(tokens).try_for_each(|(tokens, rows)| self.engine.run_products(tokens, rows))
        })
        .map_err(|error| failure(&error))
    }

    fn prefill(&mut self, prompt: &[u32]) -> Result<(), EngineError> {
        let mut position = 0;
        for token_ids in prompt.chunks(CHUNK as usize) {
            let last = position as usize + token_ids.len() == prompt.len();
            let slice = SequenceSlice {
                token_ids,
                position,
                pages: &self.prompt_pages,
                logits: if last {
                    LogitRows::Last
                } else {
                    LogitRows::None
                },
            };
            let batch = Batch {
                copies: &[],
                slices: &[slice],
            };
            self.engine.step(&batch, &mut |_| {})?;
            position += token_ids.len() as u32;
        }
        Ok(())
    }

    fn decode(&mut self, streams: u32, position: u32) -> Result<(), EngineError> {
        let token = [self.prompt[0]];
        let slices: Vec<_> = self.streams[..streams as usize]
            .iter()
            .map(|pages| SequenceSlice {
                token_ids: &token,
                position,
                pages,
                logits: LogitRows::Last,
            })
            .collect();
        let batch = Batch {
            copies: &[],
            slices: &slices,
        };
        self.engine.step(&batch, &mut |_| {}).map(|_| ())
    }
}

impl Contender for Subject {
    fn tokens_per_second(&mut self, work: Work) -> Result<f64, Failure> {
        match work {
            Work::Prefill { tokens } => {
                let prompt = self.prompt[..tokens as usize].to_vec();
                repeat(|| self.prefill(&prompt)).map(|seconds| f64::from(tokens) / seconds)
            }
            Work::Decode { streams, context } => (0..STEPS)
                .map(|step| timed(|| self.decode(streams, context + step)))
                .collect::<Result<Vec<_>, _>>()
                .map(|seconds| f64::from(streams) / middle(seconds)),
        }
        .map_err(|error| failure(&error))
    }
}

fn options(plan: &Plan) -> CpuOptions {
    CpuOptions {
        threads: plan.threads,
        cpus: Vec::new(),
        max_step_tokens: CHUNK as usize,
        max_step_rows: MAX_STREAMS,
        isa: None,
    }
}

/// Tokens and rows of logits of each chunk of a prompt.
fn chunks(tokens: u32) -> impl Iterator<Item = (usize, usize)> {
    (0..tokens).step_by(CHUNK as usize).map(move |first| {
        let count = CHUNK.min(tokens - first);
        (count as usize, usize::from(first + count == tokens))
    })
}

/// Keys that a stream holds in the middle of a measurement, its new token included.
fn keys_of_step(work: Work) -> f64 {
    match work {
        Work::Prefill { .. } => 0.0,
        Work::Decode { context, .. } => f64::from(context) + f64::from(STEPS + 1) / 2.0,
    }
}

/// Median seconds of one run, repeated for at least [`LEAST_TIME`].
fn repeat(mut run: impl FnMut() -> Result<(), EngineError>) -> Result<f64, EngineError> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || begin.elapsed() < LEAST_TIME {
        times.push(timed(&mut run)?);
    }
    Ok(middle(times))
}

fn timed(run: impl FnOnce() -> Result<(), EngineError>) -> Result<f64, EngineError> {
    let begin = Instant::now();
    run()?;
    Ok(begin.elapsed().as_secs_f64())
}

fn middle(times: Vec<f64>) -> f64 {
    crate::bench::statistics::Median::of(times).value
}

/// What the user can mend is told as usage.
pub(super) fn failure(error: &EngineError) -> Failure {
    match error {
        EngineError::Option { option, reason } => Failure::usage(format!("--{option}: {reason}")),
        _ => Failure::failed(error.to_string()),
    }
}
