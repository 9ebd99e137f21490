//! The contract of a step: what it refuses, what it promises, and what it leaves alone.
#![allow(missing_docs, unsafe_code)] // Looks at the KV region's bytes.

mod common;

use std::sync::Arc;

use baton_engine::{
    Batch, CpuEngine, CpuModel, CpuOptions, EngineError, LogitRows, SequenceSlice, StepEngine,
    anonymous_memory,
};
use baton_kv_cache::{KvDtype, KvMemory, PageIndex};
use baton_model_file::fixtures::{Random, TinyModel};
use common::{PageDealer, bits, load, options, random_tokens, run, step};

const PAGES: u32 = 8;

fn tiny() -> (TinyModel, Arc<CpuModel>) {
    let shape = TinyModel {
        context_length: 64,
        ..TinyModel::default()
    };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tiny.gguf");
    shape.write_gguf(&path).expect("the model is written");
    (shape, load(&path))
}

fn with_memory(model: &Arc<CpuModel>, options: &CpuOptions) -> (CpuEngine, Arc<dyn KvMemory>) {
    let layout = model.kv_layout(16, PAGES, KvDtype::Bf16);
    let memory = anonymous_memory(layout.region_bytes()).expect("memory");
    let engine = CpuEngine::new(model.clone(), layout, memory.clone(), options).expect("an engine");
    (engine, memory)
}

fn content(memory: &dyn KvMemory) -> Vec<u8> {
    // SAFETY: no step runs now, so nobody writes the region.
    unsafe { std::slice::from_raw_parts(memory.base().as_ptr(), memory.len()) }.to_vec()
}

fn slice<'a>(token_ids: &'a [u32], position: u32, pages: &'a [PageIndex]) -> SequenceSlice<'a> {
    SequenceSlice {
        token_ids,
        position,
        pages,
        logits: LogitRows::Last,
    }
}

fn every<'a>(token_ids: &'a [u32], position: u32, pages: &'a [PageIndex]) -> SequenceSlice<'a> {
    SequenceSlice {
        logits: LogitRows::All,
        ..slice(token_ids, position, pages)
    }
}

#[test]
fn malformed_batches_are_refused_before_anything_is_written() {
    let (shape, model) = tiny();
    let limits = CpuOptions {
        max_step_tokens: 40,
        max_step_rows: 2,
        ..options(1, None)
    };
    let (mut engine, memory) = with_memory(&model, &limits);
    let page = |at: u32| PageIndex(at);
    let (a, b, far) = (
        [page(0), page(1), page(2), page(3)],
        [page(4), page(1)],
        [page(0), page(PAGES)],
    );
    let (twice, ids) = ([page(0), page(0)], vec![1_u32; 60]);
    let beyond = [shape.vocabulary];
    let (five, six) = ([page(5)], [page(6)]);
    let good = slice(&ids[..3], 0, &a);
    let cases: Vec<(&str, Vec<SequenceSlice<'_>>)> = vec![
        ("no tokens", vec![good, slice(&[], 0, &b)]),
        ("context of 64", vec![good, slice(&ids[..3], 62, &b)]),
        ("context of 64", vec![good, slice(&ids[..3], u32::MAX, &b)]),
        ("which covers 32", vec![good, slice(&ids[..3], 30, &b)]),
        ("pool of 8", vec![good, slice(&ids[..3], 0, &far)]),
        (
            "written twice",
            vec![slice(&ids[..20], 0, &a), slice(&ids[..3], 15, &b)],
        ),
        ("written twice", vec![good, slice(&ids[..20], 0, &twice)]),
        ("vocabulary of 512", vec![good, slice(&beyond, 0, &b)]),
        ("41 tokens", vec![good, slice(&ids[..38], 0, &b)]),
        (
            "3 logits rows",
            vec![good, slice(&[1], 0, &five), slice(&[1], 0, &six)],
        ),
        ("4 logits rows", vec![good, every(&ids[..3], 0, &five)]),
    ];
    let before = content(&*memory);
    let mut layers = 0;
    for (expected, slices) in &cases {
        let batch = Batch {
            copies: &[],
            slices,
        };
        let error = engine
            .step(&batch, &mut |_| layers += 1)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error:?} says {expected:?}");
    }
    for (expected, copies) in [
        ("pool of 8", vec![(page(0), page(8))]),
        ("pool of 8", vec![(page(9), page(0))]),
        (
            "target of two",
            vec![(page(0), page(1)), (page(2), page(1))],
        ),
        (
            "both source and target",
            vec![(page(0), page(1)), (page(1), page(2))],
        ),
    ] {
        let batch = Batch {
            copies: &copies,
            slices: &[good],
        };
        let error = engine
            .step(&batch, &mut |_| layers += 1)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error:?} says {expected:?}");
    }
    let batch = Batch {
        copies: &[],
        slices: &[good, slice(&[], 0, &b)],
    };
    let error = engine
        .step(&batch, &mut |_| layers += 1)
        .map(|_| ())
        .expect_err("no tokens");
    assert!(
        matches!(error, EngineError::BadSlice { slice: 1, .. }),
        "{error}"
    );
    assert_eq!(layers, 0, "no layer ran");
    assert!(before == content(&*memory), "nothing was written");
    assert_eq!(
        step(&mut engine, &mut [(&mut sequence(&a), &ids[..3])]).len(),
        1,
        "it still works"
    );
}

fn sequence(pages: &[PageIndex]) -> common::Sequence {
    common::Sequence {
        pages: pages.to_vec(),
        position: 0,
    }
}

#[test]
fn layers_are_reported_in_order_with_their_pages_written() {
    let (_, model) = tiny();
    let (mut engine, memory) = with_memory(&model, &options(2, None));
    let layout = model.kv_layout(16, PAGES, KvDtype::Bf16);
    let pages = [PageIndex(3)];
    let mut seen = Vec::new();
    let batch = Batch {
        copies: &[],
        slices: &[slice(&[5, 6, 7], 0, &pages)],
    };
    let piece_is_written = |layer| {
        let piece = layout.piece_offset(layer, 3);
        content(&*memory)[piece..piece + layout.piece_bytes()]
            .iter()
            .any(|byte| *byte != 0)
    };
    engine
        .step(&batch, &mut |layer| {
            seen.push((
                layer,
                piece_is_written(layer),
                layer + 1 < 2 && piece_is_written(layer + 1),
            ));
        })
        .expect("a step");
    assert_eq!(seen, [(0, true, false), (1, true, false)]);
}

#[test]
fn steps_without_logits_and_without_slices() {
    let (_, model) = tiny();
    let (mut engine, _) = with_memory(&model, &options(2, None));
    let pages = [PageIndex(0)];
    let silent = SequenceSlice {
        logits: LogitRows::None,
        ..slice(&[1, 2, 3], 0, &pages)
    };
    for slices in [&[silent][..], &[]] {
        let mut layers = 0;
        let batch = Batch {
            copies: &[],
            slices,
        };
        let logits = engine.step(&batch, &mut |_| layers += 1).expect("a step");
        assert!(logits.values.is_empty());
        assert_eq!(layers, 2);
    }
}

/// A copied page is as good as the original, and the original stays as it was.
#[test]
fn copies_come_before_the_step() {
    let (shape, model) = tiny();
    let (mut engine, _) = with_memory(&model, &options(2, None));
    let mut random = Random::new(3);
    let tokens = random_tokens(&mut random, 30, shape.vocabulary as usize);
    let mut original = sequence(&[PageIndex(0), PageIndex(1)]);
    run(&mut engine, &mut original, &tokens[..20], 20);
    let copied = [PageIndex(0), PageIndex(5)];
    let rows: Vec<_> = [copied, [PageIndex(0), PageIndex(1)]]
        .iter()
        .enumerate()
        .map(|(at, pages)| {
            let copies = [(PageIndex(1), PageIndex(5))];
            let copies = if at == 0 { &copies[..] } else { &[] };
            let batch = Batch {
                copies,
                slices: &[slice(&tokens[20..], 20, pages)],
            };
            bits(engine.step(&batch, &mut |_| {}).expect("a step").row(0))
        })
        .collect();
    assert!(rows[0] == rows[1]);
}

/// Not-a-number and infinity in one sequence end no process and touch no neighbour.
#[test]
fn numbers_that_are_none_stay_with_their_sequence() {
    let shape = TinyModel {
        context_length: 64,
        ..TinyModel::default()
    };
    let mut file = shape.gguf();
    let poison = |file: &mut baton_model_file::fixtures::GgufFile, token: usize, value: f32| {
        let embedding = file
            .tensors
            .iter_mut()
            .find(|t| t.name == "token_embd.weight")
            .expect("an embedding");
        let at = token * shape.hidden as usize * 4;
        embedding.data[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    poison(&mut file, 7, f32::NAN);
    poison(&mut file, 8, f32::INFINITY);
    poison(&mut file, 9, f32::MAX);
    // The output matrix is its own, so that other sequences' logits are numbers.
    let untied = TinyModel {
        output: Some(baton_model_file::TensorType::F32),
        ..shape.clone()
    };
    let output = untied
        .gguf()
        .tensors
        .into_iter()
        .find(|t| t.name == "output.weight")
        .expect("an output");
    file.tensors.push(output);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tiny.gguf");
    std::fs::write(&path, file.bytes()).expect("written");
    let model = load(&path);

    let mut random = Random::new(4);
    let mut dealer = PageDealer::new(PAGES, &mut random);
    let (mut engine, _) = with_memory(&model, &options(2, None));
    let healthy = [20, 21, 22, 23, 24];
    let alone = run(&mut engine, &mut dealer.sequence(16, 16), &healthy, 5).remove(0);
    assert!(alone.iter().all(|value| value.is_finite()));
    for poisoned in [7, 8, 9] {
        let mut dealer = PageDealer::new(PAGES, &mut random);
        let (mut first, mut second) = (dealer.sequence(16, 16), dealer.sequence(16, 16));
        let sick = [20, poisoned, 21];
        let rows = step(
            &mut engine,
            &mut [(&mut first, &sick), (&mut second, &healthy)],
        );
        assert!(
            bits(&rows[1]) == bits(&alone),
            "the neighbour of token {poisoned}"
        );
        // A token that comes before the sick one in the same chunk sees nothing of it.
        let mut third = dealer.sequence(16, 16);
        let before = step(&mut engine, &mut [(&mut third, &sick[..1])]).remove(0);
        assert!(before.iter().all(|value| value.is_finite()));
    }
}

#[test]
fn options_and_regions_out_of_range_are_refused_by_name() {
    let (_, model) = tiny();
    let good = options(1, None);
    for (expected, bad) in [
        (
            "threads",
            CpuOptions {
                threads: 0,
                ..good.clone()
            },
        ),
        (
            "threads",
            CpuOptions {
                threads: 100_000,
                ..good.clone()
            },
        ),
        (
            "max_step_tokens",
            CpuOptions {
                max_step_tokens: 0,
                ..good.clone()
            },
        ),
        (
            "max_step_rows",
            CpuOptions {
                max_step_rows: usize::MAX,
                ..good.clone()
            },
        ),
        (
            "CPU 100000",
            CpuOptions {
                cpus: vec![0, 100_000],
                threads: 2,
                ..good.clone()
            },
        ),
    ] {
        let layout = model.kv_layout(16, PAGES, KvDtype::Bf16);
        let memory = anonymous_memory(layout.region_bytes()).expect("memory");
        let error = CpuEngine::new(model.clone(), layout, memory, &bad)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    let layout = model.kv_layout(16, PAGES, KvDtype::Bf16);
    let memory = anonymous_memory(layout.region_bytes()).expect("memory");
    for (expected, bad) in [
        (
            "the region has",
            model.kv_layout(16, PAGES + 1, KvDtype::Bf16),
        ),
        (
            "the region has",
            model.kv_layout(16, u32::MAX, KvDtype::Bf16),
        ),
        ("the region has", model.kv_layout(16, 0, KvDtype::Bf16)),
        ("page size 0", model.kv_layout(0, PAGES, KvDtype::Bf16)),
        ("page size 257", model.kv_layout(257, PAGES, KvDtype::Bf16)),
        (
            "not the model's",
            baton_kv_cache::KvLayout {
                kv_heads: 1,
                ..layout
            },
        ),
    ] {
        let error = CpuEngine::new(model.clone(), bad, memory.clone(), &good)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(anonymous_memory(0).is_err());
    assert!(anonymous_memory(usize::MAX).is_err());
}
