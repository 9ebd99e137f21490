//! Microseconds to sample one row of logits, for each way of sampling and each instruction set of this
//! machine: `sampling [vocabulary] [rows]`.
#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use baton_engine::{CpuEngine, CpuModel, CpuOptions, Isa, StepEngine, anonymous_memory};
use baton_kv_cache::KvDtype;
use baton_model_file::{ModelFile, fixtures::TinyModel};
use baton_sampling::{SampleInput, Sampler, SamplingParams};

/// A row as language models give them: a bell of standard deviation 2.5, of which a few tokens stand out
/// so far that the first has about a third of the probability.
fn row(vocabulary: usize, state: &mut u64) -> Vec<f32> {
    let mut uniform = || {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f32 / (1u64 << 24) as f32
    };
    // The sum of 12 uniform numbers has variance 1.
    let mut row: Vec<f32> = (0..vocabulary)
        .map(|_| 2.5 * ((0..12).map(|_| uniform()).sum::<f32>() - 6.0))
        .collect();
    for step in 0..12_u16 {
        let id = (uniform() * vocabulary as f32) as usize;
        row[id] = 14.0 - 0.5 * f32::from(step);
    }
    row
}

fn main() {
    let number = |at: usize, default: usize| {
        std::env::args()
            .nth(at)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (vocabulary, count) = (number(1, 49_152), number(2, 300));
    let mut state = 7;
    let rows: Vec<_> = (0..32).map(|_| row(vocabulary, &mut state)).collect();
    let ways = ways();
    println!("{vocabulary} logits, microseconds per row: least and median of {count}");
    for isa in Isa::available() {
        println!("{}", isa.name());
        let sampler = sampler(*isa);
        for (name, params) in &ways {
            let params = params.clone().validate(vocabulary as u32).expect("valid");
            let (least, median) = cost(sampler, &params, &rows, count);
            println!("  {name:20} {least:7.1} {median:7.1}");
        }
    }
}

/// Parameters that take different ways through the sampler, by name.
fn ways() -> [(&'static str, SamplingParams); 8] {
    let greedy = SamplingParams::default();
    let drawn = SamplingParams {
        temperature: 0.8,
        ..greedy.clone()
    };
    [
        ("greedy", greedy.clone()),
        (
            "greedy, 5 logprobs",
            SamplingParams {
                logprobs: Some(5),
                ..greedy
            },
        ),
        ("temperature", drawn.clone()),
        (
            "top-k 40",
            SamplingParams {
                top_k: 40,
                ..drawn.clone()
            },
        ),
        (
            "top-p 0.9",
            SamplingParams {
                top_p: 0.9,
                ..drawn.clone()
            },
        ),
        (
            "top-k 40, top-p 0.9",
            SamplingParams {
                top_k: 40,
                top_p: 0.9,
                ..drawn.clone()
            },
        ),
        (
            "presence penalty",
            SamplingParams {
                presence_penalty: 0.5,
                ..drawn.clone()
            },
        ),
        (
            "min-p 0.05",
            SamplingParams {
                min_p: 0.05,
                ..drawn
            },
        ),
    ]
}

/// The sampler that an engine of this instruction set hands out, whatever its model.
fn sampler(isa: Isa) -> &'static dyn Sampler {
    let path = std::env::temp_dir().join(format!("sampling-{}.gguf", std::process::id()));
    TinyModel::default()
        .write_gguf(&path)
        .expect("the model is written");
    let file = ModelFile::open(&path).expect("the model opens");
    std::fs::remove_file(&path).expect("the model is removed");
    let options = CpuOptions {
        threads: 1,
        cpus: Vec::new(),
        max_step_tokens: 1,
        max_step_rows: 1,
        isa: Some(isa),
    };
    let model = CpuModel::load(&file, &options, &mut |_, _| {}).expect("the model loads");
    let layout = model.kv_layout(16, 1, KvDtype::Bf16);
    let memory = anonymous_memory(layout.region_bytes()).expect("memory");
    let engine = CpuEngine::new(Arc::new(model), layout, memory, &options);
    engine.expect("the engine starts").sampler()
}

/// Least and median time.
fn cost(
    sampler: &dyn Sampler,
    params: &SamplingParams,
    rows: &[Vec<f32>],
    count: usize,
) -> (f64, f64) {
    let mut times: Vec<f64> = (0..count)
        .map(|at| {
            let input = SampleInput {
                logits: black_box(&rows[at % rows.len()]),
                prompt: &[1],
                completion: &[2, 3, 4],
                choice: 0,
                eos_ids: &[0],
            };
            let started = Instant::now();
            black_box(sampler.sample(params, &input).expect("a token"));
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[count / 2])
}
