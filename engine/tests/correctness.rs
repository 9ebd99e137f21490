//! Logits of small random models against a plain f64 forward pass.
#![allow(missing_docs)]

mod common;
#[path = "common/naive.rs"]
mod naive;

use std::path::Path;

use baton_kv_cache::KvDtype;
use baton_model_file::{
    Architecture, ModelFile, RopeScaling, TensorType,
    fixtures::{GgufTensor, Random, TinyModel},
};
use common::{PageDealer, bits, engine, load, options, random_tokens, run};
use naive::Naive;

const TOKENS: usize = 60;

/// Largest difference between engine and reference over all positions, in units of the logits'
/// standard deviation.
fn error(path: &Path, dtype: KvDtype, page_size: u32) -> f64 {
    let naive = Naive::read(&ModelFile::open(path).expect("the model opens"), u32::MAX);
    let model = load(path);
    let mut random = Random::new(11);
    let tokens = random_tokens(&mut random, TOKENS, model.config().vocabulary as usize);
    let pages = (TOKENS as u32).div_ceil(page_size) + 3;
    let mut engine = engine(&model, &options(2, None), page_size, pages, dtype);
    let mut sequence = PageDealer::new(pages, &mut random).sequence(TOKENS, page_size);
    let ours = run(&mut engine, &mut sequence, &tokens, 1);
    let theirs = naive.logits(&tokens);
    let all: Vec<f64> = theirs.iter().flatten().copied().collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let deviation = (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
    ours.iter()
        .flatten()
        .zip(&all)
        .map(|(ours, theirs)| (f64::from(*ours) - theirs).abs() / deviation)
        .fold(0.0, f64::max)
}

fn error_of(model: &TinyModel, dtype: KvDtype, page_size: u32) -> f64 {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tiny.gguf");
    model.write_gguf(&path).expect("the model is written");
    error(&path, dtype, page_size)
}

fn family(architecture: Architecture) -> TinyModel {
    TinyModel {
        architecture,
        ..TinyModel::default()
    }
}

#[test]
fn families_agree_with_the_plain_forward_pass() {
    for architecture in [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
    ] {
        for (heads, kv_heads, head_dim) in
            [(4, 2, 16), (3, 1, 24), (7, 7, 8), (6, 2, 64), (2, 1, 80)]
        {
            let model = TinyModel {
                heads,
                kv_heads,
                head_dim,
                ..family(architecture)
            };
            for (dtype, page_size, bound) in [
                (KvDtype::F32, 16, 1e-4),
                (KvDtype::F32, 7, 1e-4),
                (KvDtype::F16, 16, 4e-3),
                (KvDtype::Bf16, 16, 3e-2),
                (KvDtype::Bf16, 5, 3e-2),
                (KvDtype::Int8, 16, 1e-1),
                (KvDtype::Int8, 5, 1e-1),
            ] {
                let error = error_of(&model, dtype, page_size);
                assert!(
                    error < bound,
                    "{architecture:?} {heads}/{kv_heads}x{head_dim} {dtype:?}/{page_size}: {error}"
                );
            }
        }
    }
}

#[test]
fn every_tensor_type_agrees_with_the_plain_forward_pass() {
    for kind in TensorType::ALL {
        let model = TinyModel {
            hidden: 256,
            intermediate: 512,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            output: Some(kind),
            ..TinyModel::default()
        }
        .with_type(kind);
        let error = error_of(&model, KvDtype::F32, 16);
        // Integer weights take activations in 8 bits (a group's largest value over 127).
        let bound = match kind {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => 1e-4,
            _ => 0.15,
        };
        assert!(error < bound, "{kind:?}: {error}");
    }
}

/// MDL-08, execution: every scaling, at positions beyond the original context.
#[test]
fn mdl_08_scaled_rotations_agree_beyond_the_original_context() {
    let factors = (0..8).map(|pair| 1.0 + pair as f32).collect();
    let yarn = |attention_multiplier| RopeScaling::Yarn {
        factor: 4.0,
        original_context: 16,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        attention_multiplier,
    };
    for rope_scaling in [
        RopeScaling::Linear { factor: 2.0 },
        yarn(1.0),
        yarn(1.25),
        RopeScaling::Factors(factors),
    ] {
        let model = TinyModel {
            rope_scaling: rope_scaling.clone(),
            ..TinyModel::default()
        };
        let error = error_of(&model, KvDtype::F32, 16);
        assert!(error < 1e-4, "{rope_scaling:?}: {error}");
        // The check must notice a scaling that is left out.
        let directory = tempfile::tempdir().expect("a directory");
        let (with, without) = (
            directory.path().join("with.gguf"),
            directory.path().join("without.gguf"),
        );
        model.write_gguf(&with).expect("written");
        TinyModel::default().write_gguf(&without).expect("written");
        assert!(
            distance(&with, &without) > 1e-2,
            "{rope_scaling:?} changes the logits"
        );
    }
}

/// Scalings that only Hugging Face files can state.
#[test]
fn mdl_08_scalings_of_hugging_face_files_agree_beyond_the_original_context() {
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 16,
    };
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 16,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(1.2),
        attention_multiplier: 1.0,
    };
    for rope_scaling in [llama3, yarn] {
        let model = TinyModel {
            rope_scaling: rope_scaling.clone(),
            ..TinyModel::default()
        };
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tiny");
        model.write_hf_dir(&path, 1).expect("written");
        let file = ModelFile::open(&path).expect("the model opens");
        assert_eq!(file.config().rope.scaling, rope_scaling);
        let error = error(&path, KvDtype::F32, 16);
        assert!(error < 1e-4, "{rope_scaling:?}: {error}");
    }
}

/// Largest difference between the last logits of two models on the same tokens.
fn distance(a: &Path, b: &Path) -> f32 {
    let (a, b) = (last_logits(a), last_logits(b));
    a.iter()
        .zip(&b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

fn last_logits(path: &Path) -> Vec<f32> {
    let model = load(path);
    let mut random = Random::new(5);
    let tokens = random_tokens(&mut random, TOKENS, model.config().vocabulary as usize);
    let mut engine = engine(&model, &options(1, None), 16, 8, KvDtype::F32);
    let mut sequence = PageDealer::new(8, &mut random).sequence(TOKENS, 16);
    run(&mut engine, &mut sequence, &tokens, TOKENS).remove(0)
}

/// Hugging Face files rotate halves, llama GGUF files neighbours: the same model either way.
#[test]
fn mdl_07_gguf_and_safetensors_of_the_same_weights_agree() {
    for architecture in [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
    ] {
        for shards in [1, 3] {
            let model = family(architecture);
            let directory = tempfile::tempdir().expect("a directory");
            let (gguf, folder) = (
                directory.path().join("tiny.gguf"),
                directory.path().join("tiny"),
            );
            model.write_gguf(&gguf).expect("written");
            model.write_hf_dir(&folder, shards).expect("written");
            let distance = distance(&gguf, &folder);
            assert!(
                distance < 1e-4,
                "{architecture:?} in {shards} shards: {distance}"
            );
        }
    }
}

/// MDL-05: a file without an output matrix uses the embedding, one with it uses that.
#[test]
fn mdl_05_tied_and_explicit_outputs() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let tied = TinyModel::default();
    tied.write_gguf(&path("tied.gguf")).expect("written");
    let mut file = tied.gguf();
    let embedding = file
        .tensors
        .iter()
        .find(|t| t.name == "token_embd.weight")
        .expect("an embedding");
    let copy = GgufTensor {
        name: "output.weight".into(),
        kind: embedding.kind,
        dimensions: embedding.dimensions.clone(),
        data: embedding.data.clone(),
    };
    file.tensors.push(copy);
    std::fs::write(path("copied.gguf"), file.bytes()).expect("written");
    let untied = TinyModel {
        output: Some(TensorType::F32),
        ..tied
    };
    untied.write_gguf(&path("untied.gguf")).expect("written");
    assert_eq!(
        bits(&last_logits(&path("tied.gguf"))),
        bits(&last_logits(&path("copied.gguf")))
    );
    assert!(distance(&path("tied.gguf"), &path("untied.gguf")) > 0.1);
    let error = error(&path("untied.gguf"), KvDtype::F32, 16);
    assert!(error < 1e-4, "untied: {error}");
}
