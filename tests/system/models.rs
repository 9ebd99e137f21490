//! Models and prompts of the tests.

use std::path::{Path, PathBuf};

use baton_model_file::TensorType;
use baton_model_file::fixtures::{Random, TinyModel};
use baton_proto::v1::generate_request::Input;
use baton_proto::v1::{ChatInput, ChatMessage, GenerateRequest, SamplingOptions, TokenInput};

/// A tiny random model in a folder of its own.
pub(crate) fn tiny_model(folder: &Path) -> PathBuf {
    write(folder, "tiny.gguf", &tiny())
}

/// The tiny model's shape.
pub(crate) fn tiny() -> TinyModel {
    TinyModel {
        weights: vec![TensorType::Q4_1, TensorType::Q8_0, TensorType::F16],
        ..TinyModel::default()
    }
}

/// A random model that is quick to load and slow to run: a long prompt computes for a second or so, so
/// that faults find it half way.
pub(crate) fn slow_model(folder: &Path) -> PathBuf {
    let model = TinyModel {
        layers: 16,
        hidden: 256,
        heads: 8,
        kv_heads: 4,
        head_dim: 32,
        intermediate: 768,
        context_length: 4096,
        weights: vec![TensorType::Q4_1],
        ..TinyModel::default()
    };
    write(folder, "slow.gguf", &model)
}

fn write(folder: &Path, name: &str, model: &TinyModel) -> PathBuf {
    let path = folder.join(name);
    model.write_gguf(&path).expect("the folder is writable");
    path
}

/// The default model, which `make test` has fetched.
pub(crate) fn default_model() -> PathBuf {
    let folder = std::env::var_os("BATON_MODEL_DIR").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache/baton"),
        PathBuf::from,
    );
    let path = folder.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(
        path.exists(),
        "{} is missing; `make test` fetches it",
        path.display()
    );
    path
}

/// A random prompt for the random models.
pub(crate) fn tiny_prompt(seed: u64, length: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..length).map(|_| random.below(256) as u32).collect()
}

/// A greedy request by token ids.
pub(crate) fn by_ids(token_ids: Vec<u32>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Tokens(TokenInput { token_ids })),
        sampling: Some(SamplingOptions {
            temperature: Some(0.0),
            max_tokens: Some(max_tokens),
            ..SamplingOptions::default()
        }),
        ..GenerateRequest::default()
    }
}

/// A greedy request of exactly so many tokens.
pub(crate) fn endless(token_ids: Vec<u32>, tokens: u32) -> GenerateRequest {
    with(by_ids(token_ids, tokens), |sampling| {
        sampling.ignore_eos = true;
    })
}

/// A greedy request of one user turn.
pub(crate) fn chat(content: &str, max_tokens: u32) -> GenerateRequest {
    let message = ChatMessage {
        role: "user".into(),
        content: content.into(),
    };
    let input = Input::Chat(ChatInput {
        messages: vec![message],
    });
    GenerateRequest {
        input: Some(input),
        ..by_ids(Vec::new(), max_tokens)
    }
}

/// The request with other sampling options.
pub(crate) fn with(
    mut request: GenerateRequest,
    change: impl FnOnce(&mut SamplingOptions),
) -> GenerateRequest {
    change(
        request
            .sampling
            .as_mut()
            .expect("every request here has them"),
    );
    request
}
