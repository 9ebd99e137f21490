//! Tests by case id. Those of the real model read it from `$BATON_MODEL_DIR` (default
//! `~/.cache/baton`) and the reference from `tests/reference` of the workspace.

mod added;
mod chat;
mod detokenizer;
mod golden;
mod hostile;
mod hugging_face;
mod refusals;
mod stops;

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use baton_model_file::fixtures::{ByteTokenizer, TinyModel};
use baton_model_file::{GgufTokenizer, ModelConfig, ModelFile, TextMetadata, TokenizerSource};

use crate::{ChatMessage, TextModel};

const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const CHATML: &str = baton_model_file::fixtures::CHAT_TEMPLATE;

static REAL: LazyLock<(Arc<TextModel>, TextMetadata, ModelConfig)> = LazyLock::new(|| {
    let directory = std::env::var_os("BATON_MODEL_DIR").map_or_else(
        || {
            let home = std::env::var_os("HOME").expect("HOME is set");
            PathBuf::from(home).join(".cache/baton")
        },
        PathBuf::from,
    );
    let path = directory.join(MODEL);
    let file = ModelFile::open(&path)
        .unwrap_or_else(|error| panic!("this test needs the model {}: {error}", path.display()));
    let model = TextModel::new(file.text(), file.config()).expect("the default model is supported");
    (Arc::new(model), file.text().clone(), file.config().clone())
});

/// The default model's tokenizer and template.
fn real() -> &'static Arc<TextModel> {
    &REAL.0
}

fn reference() -> serde_json::Value {
    serde_json::from_str(&reference_file("reference.json")).expect("the reference is JSON")
}

fn reference_file(name: &str) -> String {
    let path = format!("{}/../tests/reference/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("this test needs {path}: {error}"))
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids");
    list.iter()
        .map(|id| id.as_u64().expect("an id") as u32)
        .collect()
}

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage {
        role: role.into(),
        content: content.into(),
    }
}

/// A tiny byte-level tokenizer: 3 control tokens, 256 bytes, some merges, and what `extra` adds
/// (text, type).
fn tiny_metadata(extra: &[(&str, i32)]) -> TextMetadata {
    let tokenizer = ByteTokenizer::new(400);
    let mut token_types = vec![1; tokenizer.tokens.len()];
    token_types[..tokenizer.control].fill(3);
    let mut tokens = tokenizer.tokens;
    for (text, kind) in extra {
        tokens.push((*text).into());
        token_types.push(*kind);
    }
    TextMetadata {
        tokenizer: TokenizerSource::Gguf(GgufTokenizer {
            model: "gpt2".into(),
            pre: Some("smollm".into()),
            tokens,
            token_types,
            merges: tokenizer
                .merges
                .iter()
                .map(|(left, right)| format!("{left} {right}"))
                .collect(),
        }),
        chat_template: Some(CHATML.into()),
        bos_id: Some(1),
        eos_id: Some(2),
        add_bos: false,
    }
}

/// A configuration with enough rows and context for the tiny tokenizers.
fn config() -> ModelConfig {
    static CONFIG: LazyLock<ModelConfig> = LazyLock::new(|| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("tiny.gguf");
        TinyModel::default().write_gguf(&path).expect("written");
        let file = ModelFile::open(&path).expect("the tiny model is valid");
        file.config().clone()
    });
    ModelConfig {
        context_length: 1 << 20,
        ..CONFIG.clone()
    }
}

fn tiny(extra: &[(&str, i32)]) -> Arc<TextModel> {
    built(&tiny_metadata(extra))
}

fn built(metadata: &TextMetadata) -> Arc<TextModel> {
    Arc::new(TextModel::new(metadata, &config()).expect("a valid tokenizer"))
}

fn gguf(metadata: &mut TextMetadata) -> &mut GgufTokenizer {
    match &mut metadata.tokenizer {
        TokenizerSource::Gguf(gguf) => gguf,
        TokenizerSource::TokenizerJson(_) => panic!("not a GGUF tokenizer"),
    }
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}
