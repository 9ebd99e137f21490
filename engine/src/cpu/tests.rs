//! The first layer of the default model, from inside: Q and K after rotation.
#![allow(unsafe_code)] // Reads K from a page.

#[path = "../../tests/common/naive.rs"]
mod naive;
#[path = "../../tests/common/real_model.rs"]
mod real_model;

use std::{path::Path, sync::Arc};

use baton_kv_cache::{KvDtype, PageIndex};
use baton_model_file::{
    ModelFile, RopePairing, TensorType,
    fixtures::{TinyModel, Weight, write_safetensors},
};
use naive::Naive;

use super::{CpuEngine, CpuModel, anonymous_memory, pages::Element};
use crate::{Batch, CpuOptions, LogitRows, SequenceSlice, StepEngine};

const PAGE_SIZE: usize = 16;
/// Rows of the embedding that the copy of the first layer has.
const VOCABULARY: u32 = 2048;

/// Writes the first layer of `file` in f32 into a Hugging Face directory, rows in their own order.
fn float_copy(file: &ModelFile, directory: &Path) -> ModelFile {
    let config = file.config();
    let shape = TinyModel {
        layers: 1,
        hidden: config.hidden,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        intermediate: config.intermediate,
        vocabulary: VOCABULARY,
        rope_theta: config.rope.theta,
        ..TinyModel::default()
    };
    shape.write_hf_dir(directory, 1).expect("a directory");
    let copied = shape.tensors().into_iter().map(|weight| Weight {
        values: {
            let tensor = file.read_tensor(&weight.name).expect("the tensor reads");
            tensor.to_f32()[..weight.rows * weight.columns].to_vec()
        },
        ..weight
    });
    let copied: Vec<_> = copied.collect();
    assert!(copied.iter().all(|weight| weight.kind == TensorType::F32));
    write_safetensors(&directory.join("model.safetensors"), &copied).expect("a file");
    ModelFile::open(directory).expect("the copy opens")
}

/// Largest differences of Q and of K of layer 0, computed as if its rows were paired in this way, to plain
/// f64 on the real file, over two pages of tokens.
fn layer_0_errors(naive: &Naive, file: &ModelFile, pairing: RopePairing) -> (f64, f64) {
    let mut config = file.config().clone();
    config.layers = 1;
    config.rope.pairing = pairing;
    let model = Arc::new(CpuModel::load_as(config, file, &mut |_, _| {}).expect("the model loads"));
    let layout = model.kv_layout(PAGE_SIZE as u32, 2, KvDtype::F32);
    let memory = anonymous_memory(layout.region_bytes()).expect("memory");
    let options = CpuOptions {
        threads: 2,
        cpus: Vec::new(),
        max_step_tokens: 32,
        max_step_rows: 1,
        isa: None,
    };
    let mut engine = CpuEngine::new(model, layout, memory, &options).expect("an engine");
    // "The capital of France is", and ids that the copy has too.
    let mut tokens = vec![504, 3575, 282, 4649, 314];
    tokens.retain(|token| *token < VOCABULARY);
    tokens.extend((0..20).map(|at| 300 + at * 61));
    let pages = [PageIndex(1), PageIndex(0)];
    let slice = SequenceSlice {
        token_ids: &tokens,
        position: 0,
        pages: &pages,
        logits: LogitRows::None,
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

    let (rotated, _) = naive.heads(0, &naive.embed(&tokens));
    let width = layout.head_dim as usize;
    let (mut q_error, mut k_error): (f64, f64) = (0.0, 0.0);
    for at in 0..tokens.len() {
        // SAFETY: no step runs now.
        let heads = unsafe { engine.buffers.heads.share().row(at) };
        for (ours, theirs) in heads.iter().zip(&rotated.queries[at]) {
            let scaled = f64::from(*ours) * (width as f64).sqrt();
            q_error = q_error.max((scaled - theirs).abs());
        }
        for (head, theirs) in rotated.keys[at].chunks(width).enumerate() {
            let (keys, _) = engine.pages.head(0, pages[at / PAGE_SIZE], head);
            for (dimension, theirs) in theirs.iter().enumerate() {
                let place = f32::place(dimension, at % PAGE_SIZE, width, PAGE_SIZE);
                // SAFETY: inside the head's K, which is f32; no step runs now.
                let ours = unsafe { keys.cast::<f32>().add(place).read() };
                k_error = k_error.max((f64::from(ours) - theirs).abs());
            }
        }
    }
    (q_error, k_error)
}

/// MDL-07: llama-architecture GGUF files rotate neighbours; halves on the same file are wrong.
#[test]
fn mdl_07_layer_0_rotates_as_the_reference_does() {
    let file = ModelFile::open(&real_model::real_model()).expect("the model opens");
    let naive = Naive::read(&file, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let floats = float_copy(&file, folder.path());
    // As shipped, activations are rounded to 8 bits; in f32 nothing is rounded before rotation.
    for (name, file, bound) in [("as shipped", &file, 0.05), ("in f32", &floats, 1e-3)] {
        let (q, k) = layer_0_errors(&naive, file, RopePairing::Interleaved);
        println!("{name}: largest difference: Q {q:.2e}, K {k:.2e}");
        assert!(q < bound && k < bound, "{name}: Q {q}, K {k}");
        let (q, k) = layer_0_errors(&naive, file, RopePairing::HalfSplit);
        println!("{name}, with the wrong pairing: Q {q:.2e}, K {k:.2e}");
        assert!(
            q > 1.0 && k > 1.0,
            "{name}: wrong pairing must show: Q {q}, K {k}"
        );
    }
}
