//! Tokens per second of the CPU engine: `throughput MODEL [threads] [seconds per figure]`.
#![allow(missing_docs)]

use std::{path::Path, sync::Arc, time::Instant};

use baton_engine::{
    Batch, CpuEngine, CpuModel, CpuOptions, LogitRows, SequenceSlice, StepEngine, anonymous_memory,
};
use baton_kv_cache::{KvDtype, PageIndex};
use baton_model_file::ModelFile;

const PAGE_SIZE: u32 = 16;
const CONTEXT: usize = 256;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let path = arguments
        .get(1)
        .expect("usage: throughput MODEL [threads] [seconds]");
    let number = |at: usize, default: f64| {
        arguments
            .get(at)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (threads, seconds) = (number(2, 2.0) as usize, number(3, 2.0));
    let options = CpuOptions {
        threads,
        cpus: Vec::new(),
        max_step_tokens: 512,
        max_step_rows: 32,
        isa: None,
    };

    let started = Instant::now();
    let file = ModelFile::open(Path::new(path)).expect("the model opens");
    let model = Arc::new(CpuModel::load(&file, &options, &mut |_, _| {}).expect("the model loads"));
    println!(
        "load: {:.0} ms, packed {:.1} MB",
        started.elapsed().as_secs_f64() * 1e3,
        model.packed_bytes() as f64 / 1e6
    );
    let layout = model.kv_layout(PAGE_SIZE, 1024, KvDtype::Bf16);
    let memory = anonymous_memory(layout.region_bytes()).expect("memory");
    let mut engine = CpuEngine::new(model, layout, memory, &options).expect("the engine starts");
    println!("resident: {:.0} MB", resident_bytes() / 1e6);
    println!("{threads} threads, {}", engine.isa().name());

    for tokens in [512, 2048] {
        let rate = measure(seconds, tokens, || prefill(&mut engine, 0, tokens));
        println!("prefill {tokens}: {rate:.0} tok/s");
    }
    for streams in [1, 4, 16, 32] {
        for stream in 0..streams {
            prefill(&mut engine, stream, CONTEXT);
        }
        let rate = measure(seconds, streams, || decode(&mut engine, streams));
        println!("decode {streams} streams: {rate:.0} tok/s");
    }
    let pages = 32 * pages(0, CONTEXT + 1).len();
    let used = (layout.page_bytes() * pages) as f64;
    println!(
        "resident: {:.0} MB, of it used pages {:.0} MB",
        resident_bytes() / 1e6,
        used / 1e6
    );
}

/// Resident memory of this process (Linux; 0 elsewhere).
fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0.0) * 4096.0
}

/// Median over repetitions, as tokens per second.
fn measure(seconds: f64, tokens: usize, mut run: impl FnMut()) -> f64 {
    run();
    let (started, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || started.elapsed().as_secs_f64() < seconds {
        let before = Instant::now();
        run();
        times.push(before.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    tokens as f64 / times[times.len() / 2]
}

fn pages(stream: usize, tokens: usize) -> Vec<PageIndex> {
    let count = tokens.div_ceil(PAGE_SIZE as usize);
    let first = stream * (CONTEXT / PAGE_SIZE as usize + 1);
    (first..first + count)
        .map(|page| PageIndex(page as u32))
        .collect()
}

fn prefill(engine: &mut CpuEngine, stream: usize, tokens: usize) {
    let pages = pages(stream, tokens);
    let ids: Vec<u32> = (0..tokens).map(|at| (at * 7 % 40_000) as u32).collect();
    for (chunk, token_ids) in ids.chunks(512).enumerate() {
        let position = chunk as u32 * 512;
        let slice = SequenceSlice {
            token_ids,
            position,
            pages: &pages,
            logits: if position as usize + token_ids.len() == tokens {
                LogitRows::Last
            } else {
                LogitRows::None
            },
        };
        engine
            .step(
                &Batch {
                    copies: &[],
                    slices: &[slice],
                },
                &mut |_| {},
            )
            .expect("a step");
    }
}

fn decode(engine: &mut CpuEngine, streams: usize) {
    let tables: Vec<_> = (0..streams)
        .map(|stream| pages(stream, CONTEXT + 1))
        .collect();
    let slices: Vec<_> = tables
        .iter()
        .map(|pages| SequenceSlice {
            token_ids: &[77],
            position: CONTEXT as u32,
            pages,
            logits: LogitRows::Last,
        })
        .collect();
    engine
        .step(
            &Batch {
                copies: &[],
                slices: &slices,
            },
            &mut |_| {},
        )
        .expect("a step");
}
