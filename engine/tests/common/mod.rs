//! What the engine's tests share: models, engines and sequences over shuffled pages.
#![allow(dead_code, missing_docs, unreachable_pub)] // Each test file uses its own part.

mod real_model;

use std::{path::PathBuf, sync::Arc};

use baton_engine::{
    Batch, CpuEngine, CpuModel, CpuOptions, Isa, LogitRows, SequenceSlice, StepEngine,
    anonymous_memory,
};
use baton_kv_cache::{KvDtype, PageIndex};
use baton_model_file::{ModelFile, fixtures::Random};
#[allow(unused_imports)]
pub use real_model::real_model;

/// What the reference implementation computed: `tests/reference/` at the workspace's root.
pub fn reference() -> serde_json::Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/reference.json");
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).expect("reference.json is JSON")
}

pub fn options(threads: usize, isa: Option<Isa>) -> CpuOptions {
    CpuOptions {
        threads,
        cpus: Vec::new(),
        max_step_tokens: 1024,
        max_step_rows: 64,
        isa,
    }
}

pub fn load(path: &std::path::Path) -> Arc<CpuModel> {
    let file = ModelFile::open(path).expect("the model opens");
    Arc::new(CpuModel::load(&file, &options(1, None), &mut |_, _| {}).expect("the model loads"))
}

pub fn engine(
    model: &Arc<CpuModel>,
    options: &CpuOptions,
    page_size: u32,
    pages: u32,
    dtype: KvDtype,
) -> CpuEngine {
    let layout = model.kv_layout(page_size, pages, dtype);
    let memory = anonymous_memory(layout.region_bytes()).expect("memory");
    CpuEngine::new(model.clone(), layout, memory, options).expect("the engine starts")
}

/// A sequence with its own pages.
#[derive(Clone)]
pub struct Sequence {
    pub pages: Vec<PageIndex>,
    pub position: u32,
}

/// Hands out pages in random order, never twice.
pub struct PageDealer(Vec<PageIndex>);

impl PageDealer {
    pub fn new(pages: u32, random: &mut Random) -> Self {
        let mut all: Vec<_> = (0..pages).map(PageIndex).collect();
        for i in (1..all.len()).rev() {
            all.swap(i, random.below(i + 1));
        }
        Self(all)
    }

    pub fn sequence(&mut self, tokens: usize, page_size: u32) -> Sequence {
        let count = tokens.div_ceil(page_size as usize);
        assert!(count <= self.0.len(), "the test's pool is large enough");
        Sequence {
            pages: self.0.split_off(self.0.len() - count),
            position: 0,
        }
    }
}

/// Runs one step of `(sequence, tokens)` pairs; returns the row of each one's last token.
pub fn step(engine: &mut CpuEngine, parts: &mut [(&mut Sequence, &[u32])]) -> Vec<Vec<f32>> {
    let wanted = vec![LogitRows::Last; parts.len()];
    step_with(engine, parts, &wanted)
}

/// Runs one step of `(sequence, tokens)` pairs; returns all rows `wanted` of them.
pub fn step_with(
    engine: &mut CpuEngine,
    parts: &mut [(&mut Sequence, &[u32])],
    wanted: &[LogitRows],
) -> Vec<Vec<f32>> {
    let slices: Vec<_> = parts
        .iter()
        .zip(wanted)
        .map(|((sequence, tokens), logits)| SequenceSlice {
            token_ids: tokens,
            position: sequence.position,
            pages: &sequence.pages,
            logits: *logits,
        })
        .collect();
    let batch = Batch {
        copies: &[],
        slices: &slices,
    };
    let logits = engine.step(&batch, &mut |_| {}).expect("the step runs");
    let rows = logits
        .values
        .chunks_exact(logits.vocabulary)
        .map(<[f32]>::to_vec)
        .collect();
    for (sequence, tokens) in parts {
        sequence.position += tokens.len() as u32;
    }
    rows
}

/// Runs `tokens` of one sequence in chunks; returns the logits after each chunk.
pub fn run(
    engine: &mut CpuEngine,
    sequence: &mut Sequence,
    tokens: &[u32],
    chunk: usize,
) -> Vec<Vec<f32>> {
    tokens
        .chunks(chunk)
        .flat_map(|part| step(engine, &mut [(sequence, part)]))
        .collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub fn random_tokens(random: &mut Random, count: usize, vocabulary: usize) -> Vec<u32> {
    (0..count)
        .map(|_| random.below(vocabulary) as u32)
        .collect()
}

pub fn argmax(values: &[f32]) -> usize {
    (0..values.len())
        .max_by(|&a, &b| values[a].total_cmp(&values[b]))
        .expect("a vocabulary")
}
