//! Tokenizers from a Hugging Face `tokenizer.json`: BPE, byte-level or SentencePiece-style.
//!
//! The parts are read one by one, so that each kind that is not known to work is refused by name, and
//! sizes are checked before anything is allocated for them. Must not know of chat or text.

mod decoding;

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use self::decoding::Decoding;
use crate::TextError;
use crate::added::{AddedToken, AddedTokens};
use crate::error::excerpt;
use crate::model::Parts;
use crate::pipeline::{BpeOptions, Pipeline, bpe, pair};
use crate::vocabulary::{Kind, Vocabulary};

/// Largest `tokenizer.json` that is read.
pub const MAX_TOKENIZER_JSON_BYTES: usize = baton_model_file::MAX_TOKENIZER_JSON_BYTES as usize;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    decoder: Option<Value>,
    model: BpeModel,
}

#[derive(Deserialize)]
#[allow(clippy::struct_excessive_bools)] // The file's own fields.
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct BpeModel {
    /// Absent in old files.
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

/// Builds the tokenizer of a `tokenizer.json`. `rows` is the number of rows of the embedding.
///
/// # Errors
/// A file too large, malformed, of a kind that is not supported, or with ids beyond the embedding.
pub(crate) fn parts(json: &str, rows: u32) -> Result<Parts, TextError> {
    if json.len() > MAX_TOKENIZER_JSON_BYTES {
        return Err(TextError::TooLong {
            what: "tokenizer.json",
            bytes: json.len(),
            limit: MAX_TOKENIZER_JSON_BYTES,
        });
    }
    let file: File = serde_json::from_str(json)
        .map_err(|error| TextError::invalid(format!("tokenizer.json: {error}")))?;
    check_model(&file.model)?;
    let decoding = Decoding::new(file.decoder.as_ref())?;
    let normalizer = part::<NormalizerWrapper>(
        "normalizer",
        file.normalizer,
        &[
            "NFC",
            "NFD",
            "NFKC",
            "NFKD",
            "Lowercase",
            "Prepend",
            "Replace",
            "Sequence",
            "Strip",
        ],
    )?;
    let pre_tokenizer = part::<PreTokenizerWrapper>(
        "pre_tokenizer",
        file.pre_tokenizer,
        &["ByteLevel", "Digits", "Metaspace", "Sequence", "Split"],
    )?;
    // Rows of the embedding bound the ids; an added token without a row can never be used.
    let added: Vec<Added> = file
        .added_tokens
        .into_iter()
        .filter(|token| token.id < rows)
        .collect();
    let vocabulary = vocabulary(&file.model.vocab, &added, decoding, rows)?;
    let mut words = file.model.vocab;
    for token in added.iter().filter(|token| token.special) {
        // BPE never yields a control token, not even for a word that is its text. An unknown token
        // that BPE itself needs has to stay.
        if file.model.unk_token.as_deref() != Some(&token.content) {
            words.remove(&token.content);
        }
    }
    let options = BpeOptions {
        ignore_merges: file.model.ignore_merges.unwrap_or(false),
        byte_fallback: file.model.byte_fallback.unwrap_or(false),
        fuse_unknown: file.model.fuse_unk.unwrap_or(false),
        unknown: file.model.unk_token,
    };
    let bpe = bpe(words, all_merges(file.model.merges)?, options)?;
    let added = added.into_iter().map(|token| AddedToken {
        id: token.id,
        text: token.content,
        control: token.special,
        lstrip: token.lstrip,
        rstrip: token.rstrip,
        single_word: token.single_word,
    });
    Ok(Parts {
        pipeline: Pipeline::new(normalizer, pre_tokenizer, bpe),
        added: AddedTokens::new(added.collect())?,
        vocabulary,
        strips_first_space: decoding.strips_first_space(),
    })
}

fn check_model(model: &BpeModel) -> Result<(), TextError> {
    let refuse = |key, value: &str, supported| {
        Err(TextError::Unsupported {
            key,
            value: excerpt(value),
            supported,
        })
    };
    if let Some(kind) = model.kind.as_deref().filter(|&kind| kind != "BPE") {
        return refuse("tokenizer.json model.type", kind, "BPE");
    }
    if let Some(dropout) = model.dropout.filter(|&dropout| dropout > 0.0) {
        let value = dropout.to_string();
        return refuse("tokenizer.json model.dropout", &value, "none");
    }
    for (key, value) in [
        (
            "tokenizer.json model.continuing_subword_prefix",
            &model.continuing_subword_prefix,
        ),
        (
            "tokenizer.json model.end_of_word_suffix",
            &model.end_of_word_suffix,
        ),
    ] {
        if let Some(text) = value.as_deref().filter(|text| !text.is_empty()) {
            return refuse(key, text, "none");
        }
    }
    Ok(())
}

/// Reads one part of the file after checking that every type named in it is known to work.
fn part<T: serde::de::DeserializeOwned>(
    name: &'static str,
    value: Option<Value>,
    supported: &'static [&'static str],
) -> Result<Option<T>, TextError> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    check_types(name, &value, supported)?;
    serde_json::from_value(value)
        .map(Some)
        .map_err(|error| TextError::invalid(format!("tokenizer.json {name}: {error}")))
}

fn check_types(
    name: &'static str,
    value: &Value,
    supported: &'static [&'static str],
) -> Result<(), TextError> {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("");
    if !supported.contains(&kind) {
        return Err(TextError::Unsupported {
            key: name,
            value: excerpt(kind),
            supported: match name {
                "normalizer" => "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip",
                _ => "ByteLevel, Digits, Metaspace, Split",
            },
        });
    }
    for list in ["normalizers", "pretokenizers"] {
        for inner in value
            .get(list)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            check_types(name, inner, supported)?;
        }
    }
    Ok(())
}

/// Bytes of all tokens by id. Ids that no token has are holes.
fn vocabulary(
    words: &HashMap<String, u32>,
    added: &[Added],
    decoding: Decoding,
    rows: u32,
) -> Result<Vocabulary, TextError> {
    let mut by_id: Vec<(u32, &str, Option<Kind>)> = words
        .iter()
        .map(|(text, &id)| (id, text.as_str(), None))
        .collect();
    if let Some((id, text, _)) = by_id.iter().find(|(id, ..)| *id >= rows) {
        let text = excerpt(text);
        return Err(TextError::invalid(format!(
            "token {text:?} has id {id}, but the embedding has {rows} rows"
        )));
    }
    by_id.extend(added.iter().map(|token| {
        let kind = if token.special {
            Kind::Control
        } else {
            Kind::Text
        };
        (token.id, token.content.as_str(), Some(kind))
    }));
    // What the file says of an added token counts more than the word of the same id.
    by_id.sort_by_key(|&(id, text, kind)| (id, kind.is_none(), text));
    by_id.dedup_by_key(|&mut (id, ..)| id);
    let mut vocabulary = Vocabulary::default();
    for (id, text, kind) in by_id {
        while vocabulary.len() < id as usize {
            vocabulary.push(&[], Kind::Hole);
        }
        // An added token is written as it is.
        let bytes = match kind {
            Some(_) => text.as_bytes().to_vec(),
            None => decoding.bytes(text),
        };
        vocabulary
            .push(&bytes, kind.unwrap_or(Kind::Text))
            .ok_or_else(|| {
                TextError::invalid(format!("token {id} makes the vocabulary too large"))
            })?;
    }
    Ok(vocabulary)
}

fn all_merges(merges: Vec<Merge>) -> Result<Vec<(String, String)>, TextError> {
    merges
        .into_iter()
        .enumerate()
        .map(|(rank, merge)| match merge {
            Merge::Pair(left, right) => Ok((left, right)),
            Merge::Line(line) => pair(rank, &line),
        })
        .collect()
}
