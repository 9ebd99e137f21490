//! Tokenizers from `tokenizer.json`. Not those of GGUF files.

use std::sync::Arc;

use baton_model_file::fixtures::TinyModel;
use baton_model_file::{ModelFile, TextMetadata, TokenizerSource};
use serde_json::{Value, json};

use super::{CHATML, REAL, config, message, real};
use crate::{TextError, TextModel};

fn metadata(json: &Value) -> TextMetadata {
    TextMetadata {
        tokenizer: TokenizerSource::TokenizerJson(json.to_string()),
        chat_template: Some(CHATML.into()),
        bos_id: None,
        eos_id: None,
        add_bos: false,
    }
}

fn built(json: &Value) -> Arc<TextModel> {
    Arc::new(TextModel::new(&metadata(json), &config()).expect("a valid tokenizer.json"))
}

fn refused(json: &Value) -> String {
    match TextModel::new(&metadata(json), &config()) {
        Ok(model) => panic!("accepted: {model:?}"),
        Err(error) => error.to_string(),
    }
}

/// SentencePiece-style BPE as Llama 2 and Mistral have it.
pub(super) fn sentence_piece() -> Value {
    let mut vocab = serde_json::Map::new();
    let mut add = |text: String| {
        let id = vocab.len();
        vocab.insert(text, json!(id));
    };
    for text in ["<unk>", "<s>", "</s>"] {
        add(text.into());
    }
    for byte in 0..=255 {
        add(format!("<0x{byte:02X}>"));
    }
    for text in [
        "▁", "h", "i", "t", "e", "hi", "▁hi", "▁t", "▁the", "he", "s", "<", ">", "/",
    ] {
        add(text.into());
    }
    json!({
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": true, "normalized": false},
            {"id": 1, "content": "<s>", "special": true, "normalized": false},
            {"id": 2, "content": "</s>", "special": true, "normalized": false},
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab,
            "merges": [["h", "i"], ["▁", "hi"], ["▁", "t"], ["h", "e"], ["▁t", "he"]],
        },
    })
}

#[test]
fn a_tokenizer_json_gives_the_ids_of_the_same_gguf() {
    let (_, metadata, config) = &*REAL;
    let TokenizerSource::Gguf(gguf) = &metadata.tokenizer else {
        panic!("the default model is a GGUF file");
    };
    let vocab: serde_json::Map<String, Value> = (0u32..)
        .zip(&gguf.tokens)
        .map(|(id, token)| (token.clone(), json!(id)))
        .collect();
    let added: Vec<Value> = (0u32..)
        .zip(gguf.tokens.iter().zip(&gguf.token_types))
        .filter(|(_, (_, kind))| **kind == 3)
        .map(|(id, (text, _))| json!({"id": id, "content": text, "special": true}))
        .collect();
    let file = json!({
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "vocab": vocab, "merges": gguf.merges},
    });
    let mut other = metadata.clone();
    other.tokenizer = TokenizerSource::TokenizerJson(file.to_string());
    let other = TextModel::new(&other, config).unwrap();
    for item in super::reference()["tokenizer"].as_array().unwrap() {
        let text = item["text"].as_str().unwrap();
        let ids = real().encode(text, false).unwrap();
        assert_eq!(other.encode(text, false).unwrap(), ids);
        assert_eq!(other.decode(&ids, true).unwrap(), text);
    }
    let chat = [message("user", "x<|im_end|>y 12")];
    assert_eq!(
        other.encode_chat(&chat).unwrap(),
        real().encode_chat(&chat).unwrap()
    );
    assert_ne!(other.digest(), real().digest());
}

#[test]
pub(super) fn sentence_piece_style_spaces_and_bytes() {
    let model = built(&sentence_piece());
    let ids = model.encode("hi the", false).unwrap();
    assert_eq!(ids, [265, 267]);
    assert_eq!(model.decode(&ids, true).unwrap(), "hi the");
    assert_eq!(model.token_bytes(265).unwrap(), b" hi");
    assert_eq!(model.token_bytes(3 + 0xE6).unwrap(), [0xE6]);
    for text in ["hi 日本 the", " hi", "  hi", "🙂", "<s>hi</s>"] {
        let ids = model.encode(text, false).unwrap();
        assert!(ids.iter().all(|id| *id > 2), "{text:?}: {ids:?}");
        assert_eq!(model.decode(&ids, true).unwrap(), text);
        let mut detokenizer = model.detokenizer(&[]).unwrap();
        let mut streamed: String = ids.iter().map(|&id| detokenizer.push(id).text).collect();
        streamed.push_str(&detokenizer.finish());
        assert_eq!(streamed, text);
    }
    let ids = model.encode("<s>hi</s>", true).unwrap();
    assert_eq!(ids, [1, 265, 2]);
}

#[test]
fn metaspace_prefixes_only_the_first_text() {
    let mut file = sentence_piece();
    file["normalizer"] = Value::Null;
    file["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    file["decoder"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    let model = built(&file);
    assert_eq!(model.encode("hi", true).unwrap(), [265]);
    assert_eq!(model.encode("<s>hi", true).unwrap(), [1, 264]);
    assert_eq!(model.encode("hi<s> hi", true).unwrap(), [265, 1, 265]);
}

#[test]
fn tiny_directories_of_the_fixtures_load() {
    let directory = tempfile::tempdir().unwrap();
    let tiny = TinyModel::default();
    tiny.write_hf_dir(&directory.path().join("hf"), 1).unwrap();
    tiny.write_gguf(&directory.path().join("tiny.gguf"))
        .unwrap();
    let open = |name: &str| {
        let file = ModelFile::open(&directory.path().join(name)).unwrap();
        TextModel::new(file.text(), file.config()).unwrap()
    };
    let (from_directory, from_gguf) = (open("hf"), open("tiny.gguf"));
    for text in ["The other 12 sheep", "日本 🙂\n\n  x", "<|im_end|>"] {
        let ids = from_gguf.encode(text, false).unwrap();
        assert_eq!(from_directory.encode(text, false).unwrap(), ids);
        assert_eq!(from_directory.decode(&ids, true).unwrap(), text);
    }
    let chat = [message("user", "hello")];
    assert_eq!(
        from_directory.encode_chat(&chat).unwrap(),
        from_gguf.encode_chat(&chat).unwrap()
    );
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let changed = |pointer: &str, value: Value| {
        let mut file = sentence_piece();
        if let Some(place) = file.pointer_mut(pointer) {
            *place = value;
        } else {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            file.pointer_mut(parent).unwrap()[key] = value;
        }
        refused(&file)
    };
    for (pointer, value, part) in [
        (
            "/model/type",
            json!("Unigram"),
            "model.type is \"Unigram\", supported: BPE",
        ),
        ("/model/dropout", json!(0.1), "model.dropout is \"0.1\""),
        (
            "/model/end_of_word_suffix",
            json!("</w>"),
            "end_of_word_suffix is \"</w>\"",
        ),
        (
            "/model/unk_token",
            json!("<none>"),
            "\"<none>\" is not in the vocabulary",
        ),
        (
            "/normalizer",
            json!({"type": "Precompiled"}),
            "normalizer is \"Precompiled\"",
        ),
        (
            "/normalizer/normalizers/0",
            json!({"type": "Nmt"}),
            "normalizer is \"Nmt\"",
        ),
        (
            "/pre_tokenizer",
            json!({"type": "BertPreTokenizer"}),
            "\"BertPreTokenizer\"",
        ),
        (
            "/decoder",
            json!({"type": "WordPiece"}),
            "decoder is \"WordPiece\"",
        ),
        ("/decoder", Value::Null, "decoder is \"absent\""),
        (
            "/model/vocab/far",
            json!(4_000_000_000u32),
            "has id 4000000000",
        ),
        ("/model/vocab", json!([]), "tokenizer.json: "),
    ] {
        let error = changed(pointer, value);
        assert!(error.contains(part), "{pointer}: {error}");
    }
    let mut huge = metadata(&json!({}));
    huge.tokenizer = TokenizerSource::TokenizerJson(" ".repeat((64 << 20) + 1));
    assert!(matches!(
        TextModel::new(&huge, &config()),
        Err(TextError::TooLong {
            what: "tokenizer.json",
            ..
        })
    ));
}
