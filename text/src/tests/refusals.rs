//! GGUF metadata that must be refused, by name. Not texts of clients.

use baton_model_file::TextMetadata;

use super::{REAL, config, gguf, tiny_metadata};
use crate::{TextError, TextModel};

fn refused(metadata: &TextMetadata) -> TextError {
    TextModel::new(metadata, &config()).expect_err("must be refused")
}

#[test]
fn tok_08_a_missing_or_unknown_pre_tokenizer_is_refused_by_name() {
    let (_, metadata, config) = &*REAL;
    let mut missing = metadata.clone();
    gguf(&mut missing).pre = None;
    let error = TextModel::new(&missing, config).unwrap_err();
    assert_eq!(
        error,
        TextError::Missing {
            key: "tokenizer.ggml.pre"
        }
    );
    assert_eq!(error.to_string(), "the model file lacks tokenizer.ggml.pre");
    let mut unknown = metadata.clone();
    gguf(&mut unknown).pre = Some("no-such-pre".into());
    let error = TextModel::new(&unknown, config).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tokenizer.ggml.pre is \"no-such-pre\", supported: smollm, llama-bpe, qwen2"
    );
    assert!(!error.is_client_error());
}

#[test]
fn other_tokenizer_models_are_refused_by_name() {
    let mut metadata = tiny_metadata(&[]);
    gguf(&mut metadata).model = "llama".into();
    assert_eq!(
        refused(&metadata).to_string(),
        "tokenizer.ggml.model is \"llama\", supported: gpt2"
    );
}

#[test]
fn inconsistent_tokenizers_are_refused() {
    let broken = |change: &dyn Fn(&mut TextMetadata)| {
        let mut metadata = tiny_metadata(&[]);
        change(&mut metadata);
        refused(&metadata).to_string()
    };
    let error = broken(&|m| gguf(m).merges.push("th nosuch".into()));
    assert!(
        error.ends_with("needs \"nosuch\", which is not in the vocabulary"),
        "{error}"
    );
    // Known parts, unknown product: longer than any token, which the library would not survive.
    let long = "x".repeat(40);
    let error = broken(&|m| {
        let tokenizer = gguf(m);
        tokenizer.tokens.extend([long.clone(), "y".repeat(39)]);
        tokenizer.token_types.extend([1, 1]);
        tokenizer.merges.push(format!("{long} {}", "y".repeat(39)));
    });
    assert!(error.contains("is not in the vocabulary"), "{error}");
    let error = broken(&|m| gguf(m).merges.push("nospace".into()));
    assert!(error.contains("not two tokens"), "{error}");
    let error = broken(&|m| gguf(m).token_types.truncate(7));
    assert!(error.contains("400 tokens but 7 token types"), "{error}");
    let error = broken(&|m| m.bos_id = Some(400));
    assert!(error.contains("bos id 400 is no token"), "{error}");
    let error = broken(&|m| {
        let tokenizer = gguf(m);
        tokenizer.tokens.resize(600, "pad".into());
        tokenizer.token_types.resize(600, 5);
    });
    assert!(
        error.contains("600 tokens, but the embedding has 512 rows"),
        "{error}"
    );
    let error = broken(&|m| m.chat_template = Some("{% if %}".into()));
    assert!(
        error.starts_with("the model's chat template is invalid"),
        "{error}"
    );
    let error = broken(&|m| m.chat_template = Some("x".repeat((1 << 20) + 1)));
    assert_eq!(error, "the chat template has 1048577 bytes, limit 1048576");
    let error = broken(&|m| {
        let tokenizer = gguf(m);
        tokenizer.tokens.push("z".repeat(600 << 10));
        tokenizer.token_types.push(4);
    });
    assert!(
        error.starts_with("the text of all added tokens has"),
        "{error}"
    );
}
