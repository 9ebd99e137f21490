//! Tokenizers from `tokenizer.ggml.*`: byte-level BPE with the pre-tokenizer that the file names.
//!
//! What a pre-tokenizer name means is defined by llama.cpp (`llama-vocab.cpp`) and by the model's
//! published `tokenizer.json`. A missing or unknown name is refused: a wrong rule gives wrong ids and
//! no error. Must not know of chat or text.

use std::collections::HashMap;

use baton_model_file::GgufTokenizer;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::TextError;
use crate::added::{AddedToken, AddedTokens};
use crate::byte_level;
use crate::error::excerpt;
use crate::model::Parts;
use crate::pipeline::{BpeOptions, Pipeline, bpe, pair};
use crate::vocabulary::{Kind, Vocabulary};

/// `tokenizer.ggml.token_type`, as ggml numbers them.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Published split pattern of Llama 3.
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Published split pattern of Qwen2: Llama 3's, but every digit alone.
const QWEN2_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How one named pre-tokenizer works.
struct Rules {
    normalizer: Option<NormalizerWrapper>,
    words: PreTokenizerWrapper,
    ignore_merges: bool,
}

/// Builds the tokenizer of a GGUF file.
///
/// # Errors
/// Another model than byte-level BPE, a missing or unknown pre-tokenizer, or inconsistent data.
pub(crate) fn parts(source: &GgufTokenizer) -> Result<Parts, TextError> {
    if source.model != "gpt2" {
        return Err(TextError::Unsupported {
            key: "tokenizer.ggml.model",
            value: excerpt(&source.model),
            supported: "gpt2",
        });
    }
    let rules = rules(source.pre.as_deref())?;
    if source.token_types.len() != source.tokens.len() {
        return Err(TextError::invalid(format!(
            "{} tokens but {} token types",
            source.tokens.len(),
            source.token_types.len()
        )));
    }
    let mut words = HashMap::with_capacity(source.tokens.len());
    let mut added = Vec::new();
    let mut vocabulary = Vocabulary::default();
    for (id, (text, &kind)) in (0u32..).zip(source.tokens.iter().zip(&source.token_types)) {
        let control = matches!(kind, CONTROL | UNKNOWN);
        // An added token is written as it is; any other is in the byte-level alphabet.
        let room = if control || kind == USER_DEFINED {
            added.push(AddedToken {
                id,
                text: text.clone(),
                control,
                lstrip: false,
                rstrip: false,
                single_word: false,
            });
            let shown = if control { Kind::Control } else { Kind::Text };
            vocabulary.push(text.as_bytes(), shown)
        } else {
            vocabulary.push(&byte_level::to_bytes(text), Kind::Text)
        };
        room.ok_or_else(|| {
            TextError::invalid(format!("token {id} makes the vocabulary too large"))
        })?;
        // BPE never yields a control token, not even for a word that is its text.
        if !control {
            words.insert(text.clone(), id);
        }
    }
    let options = BpeOptions {
        ignore_merges: rules.ignore_merges,
        ..BpeOptions::default()
    };
    Ok(Parts {
        pipeline: Pipeline::new(
            rules.normalizer,
            Some(rules.words),
            bpe(words, all_merges(&source.merges)?, options)?,
        ),
        added: AddedTokens::new(added)?,
        vocabulary,
        strips_first_space: false,
    })
}

fn rules(pre: Option<&str>) -> Result<Rules, TextError> {
    const KEY: &str = "tokenizer.ggml.pre";
    match pre {
        None => Err(TextError::Missing { key: KEY }),
        Some("smollm") => {
            let parts = vec![
                PreTokenizerWrapper::Digits(Digits::new(true)),
                PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true)),
            ];
            Ok(Rules {
                normalizer: None,
                words: PreTokenizerWrapper::Sequence(Sequence::new(parts)),
                ignore_merges: false,
            })
        }
        Some("llama-bpe") => Ok(Rules {
            normalizer: None,
            words: pattern(LLAMA3_WORDS)?,
            ignore_merges: true,
        }),
        Some("qwen2") => Ok(Rules {
            // Qwen's published tokenizer composes characters first.
            normalizer: Some(NormalizerWrapper::NFC(NFC)),
            words: pattern(QWEN2_WORDS)?,
            ignore_merges: false,
        }),
        Some(other) => Err(TextError::Unsupported {
            key: KEY,
            value: excerpt(other),
            supported: "smollm, llama-bpe, qwen2",
        }),
    }
}

/// Words cut by a pattern, then written in the byte-level alphabet.
fn pattern(words: &str) -> Result<PreTokenizerWrapper, TextError> {
    let split = Split::new(
        SplitPattern::Regex(words.to_owned()),
        SplitDelimiterBehavior::Isolated,
        false,
    )
    .map_err(|error| TextError::invalid(error.to_string()))?;
    Ok(PreTokenizerWrapper::Sequence(Sequence::new(vec![
        PreTokenizerWrapper::Split(split),
        PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)),
    ])))
}

fn all_merges(merges: &[String]) -> Result<Vec<(String, String)>, TextError> {
    merges
        .iter()
        .enumerate()
        .map(|(rank, merge)| pair(rank, merge))
        .collect()
}
