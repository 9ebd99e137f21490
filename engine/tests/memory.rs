//! What the default model takes of the machine's memory.
#![cfg(target_os = "linux")]

mod common;

use baton_engine::{CpuModel, CpuOptions, LogitRows};
use baton_kv_cache::{KvDtype, PageIndex};
use baton_model_file::ModelFile;
use common::{Sequence, engine, options, real_model, step_with};

const POOL_PAGES: u32 = 64;
const PAGE_SIZE: u32 = 16;

/// Bytes of this process that are resident.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.expect("a resident size").split_whitespace().nth(1);
    number.expect("a number").parse::<u64>().expect("a number") << 10
}

#[test]
fn weights_are_resident_once_and_the_file_is_not() {
    let path = real_model();
    let file_bytes = path.metadata().expect("a file").len();
    let options = CpuOptions {
        max_step_tokens: 512,
        max_step_rows: 16,
        ..options(2, None)
    };
    let before = resident();
    let file = ModelFile::open(&path).expect("the model opens");
    let model = CpuModel::load(&file, &options, &mut |_, _| {})
        .expect("the model loads")
        .into();
    drop(file);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a table of mappings");
    assert!(!maps.contains(".gguf"), "the file is mapped");

    let mut engine = engine(&model, &options, PAGE_SIZE, POOL_PAGES, KvDtype::Bf16);
    let layout = model.kv_layout(PAGE_SIZE, POOL_PAGES, KvDtype::Bf16);
    let mut sequences: Vec<Sequence> = (0..2)
        .map(|half| Sequence {
            pages: (half * 32..(half + 1) * 32).map(PageIndex).collect(),
            position: 0,
        })
        .collect();
    // The largest steps there are: they touch all buffers and all pages.
    for sequence in &mut sequences {
        let tokens: Vec<u32> = (0..496).collect();
        step_with(&mut engine, &mut [(sequence, &tokens)], &[LogitRows::Last]);
        let tokens: Vec<u32> = (0..16).collect();
        step_with(&mut engine, &mut [(sequence, &tokens)], &[LogitRows::All]);
    }
    let taken = resident() - before;
    let pool = layout.region_bytes() as u64;
    let limit = file_bytes * 13 / 10 + pool;
    assert!(
        taken <= limit,
        "{taken} bytes resident, of them {pool} of KV; the weight file has {file_bytes}, so that {limit} are allowed"
    );
    assert!(taken > model.packed_bytes() as u64 + pool, "{taken} bytes");
}
