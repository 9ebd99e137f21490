//! One fixed piece of work for an instruction counter: `instructions MODEL WORK`.
//!
//! Only [`counted`] is to be counted (`valgrind --tool=callgrind --toggle-collect='*counted*'`). The AVX2 kernels
//! run, which the counter knows, on one thread: counts are the same on every machine and may be compared from one
//! version to the next. `scripts/instructions.sh` does all of them.
#![allow(missing_docs, unsafe_code)] // A product's contract is one thread and quantised rows.

use std::{path::Path, sync::Arc};

use baton_engine::{
    Batch, CpuEngine, CpuModel, CpuOptions, Isa, LogitRows, SequenceSlice, StepEngine,
    anonymous_memory,
    cpu::matmul::{Activations, OutputView, PackedMatrix, matmul},
};
use baton_kv_cache::{KvDtype, PageIndex};
use baton_model_file::{ModelFile, TensorType};

const ISA: Isa = Isa::Avx2;
const PAGE_SIZE: u32 = 16;

/// What is counted.
#[inline(never)]
fn counted(mut work: impl FnMut()) {
    work();
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, model, work] = &arguments[..] else {
        panic!("usage: instructions MODEL WORK");
    };
    match work.as_str() {
        "quantise-64" => quantise(64),
        "product-1" => product(1),
        "product-16" => product(16),
        "product-512" => product(512),
        "prefill-64-at-448" => steps(model, 1, 64, 448),
        "decode-1-at-256" => steps(model, 1, 1, 256),
        "decode-1-at-2048" => steps(model, 1, 1, 2048),
        "decode-16-at-256" => steps(model, 16, 1, 256),
        other => panic!("no work is called {other}"),
    }
}

/// A 3,072 x 576 matrix of `Q4_1` and rows of activations that stand out nowhere.
fn operands(rows: usize) -> (PackedMatrix, Activations, Vec<f32>) {
    let data = vec![0x11; 3072 * 576 / 32 * 20];
    let matrix = PackedMatrix::pack(TensorType::Q4_1, 3072, 576, &data).expect("a fitting shape");
    let values: Vec<f32> = (0..rows * 576).map(|i| (i % 97) as f32 - 48.0).collect();
    let x = Activations::new(rows, 576, matrix.form());
    (matrix, x, values)
}

fn quantise(rows: usize) {
    let (matrix, mut x, values) = operands(rows);
    counted(|| x.quantize(ISA, matrix.form(), 0..rows, 576, &values));
}

fn product(rows: usize) {
    let (matrix, mut x, values) = operands(rows);
    x.quantize(ISA, matrix.form(), 0..rows, 576, &values);
    let mut out = vec![0.0; rows * 3072];
    // SAFETY: one thread; the rows were quantised for this matrix.
    counted(|| unsafe {
        matmul(
            ISA,
            &matrix,
            &x,
            rows,
            0..3072,
            OutputView::of(&mut out, 3072),
        );
    });
}

/// One step: so many tokens of each stream after `context` positions, which hold zeros.
fn steps(model: &str, streams: usize, tokens: usize, context: usize) {
    let options = CpuOptions {
        threads: 1,
        cpus: Vec::new(),
        max_step_tokens: 64,
        max_step_rows: 16,
        isa: Some(ISA),
    };
    let file = ModelFile::open(Path::new(model)).expect("the model opens");
    let model = CpuModel::load(&file, &options, &mut |_, _| {}).expect("the model loads");
    let model = Arc::new(model);
    let pages = (context + tokens).div_ceil(PAGE_SIZE as usize);
    let layout = model.kv_layout(PAGE_SIZE, (streams * pages) as u32, KvDtype::Bf16);
    let memory = anonymous_memory(layout.region_bytes()).expect("memory");
    let mut engine = CpuEngine::new(model, layout, memory, &options).expect("the engine starts");
    let tables: Vec<Vec<PageIndex>> = (0..streams)
        .map(|stream| {
            (0..pages)
                .map(|page| PageIndex((stream * pages + page) as u32))
                .collect()
        })
        .collect();
    let token_ids: Vec<u32> = (0..tokens).map(|at| 1_000 + 7 * at as u32).collect();
    let slices: Vec<_> = tables
        .iter()
        .map(|pages| SequenceSlice {
            token_ids: &token_ids,
            position: context as u32,
            pages,
            logits: LogitRows::Last,
        })
        .collect();
    let batch = Batch {
        copies: &[],
        slices: &slices,
    };
    counted(|| {
        engine.step(&batch, &mut |_| {}).expect("a step");
    });
}
