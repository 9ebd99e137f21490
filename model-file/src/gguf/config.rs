//! From GGUF metadata to a [`ModelConfig`]: what is stated is applied or refused by name.
//!
//! It must not know tensor data; frequency factors are handed in.

use super::GgufHeader;
use super::keys::Keys;
use super::value::{Metadata, Value};
use crate::{FileError, ModelConfig, limits};

/// The configuration. `stem` names the model if the file does not; `untied` says whether the file
/// has an output matrix; `rope_factors` are the values of `rope_freqs.weight`.
pub(crate) fn config(
    header: &GgufHeader,
    stem: String,
    untied: bool,
    rope_factors: Option<Vec<f32>>,
) -> Result<ModelConfig, FileError> {
    let keys = Keys::new(&header.metadata)?;
    keys.refuse_unsupported()?;
    let layers = keys.size("block_count", &limits::LAYERS)?;
    let hidden = keys.size("embedding_length", &limits::WIDTH)?;
    let heads = keys.size("attention.head_count", &limits::HEADS)?;
    let kv_heads = keys
        .optional_size("attention.head_count_kv", &limits::HEADS)?
        .unwrap_or(heads);
    let head_dim = match keys.optional_size("attention.key_length", &limits::HEAD_DIM)? {
        Some(stated) => stated,
        None if hidden.is_multiple_of(heads) => limits::within(
            &keys.key("embedding_length over attention.head_count"),
            u64::from(hidden / heads),
            &limits::HEAD_DIM,
        )?,
        None => return Err(FileError::missing(keys.key("attention.key_length"))),
    };
    keys.require_equal("attention.value_length", head_dim)?;
    let stated_context = keys.size("context_length", &limits::CONTEXT)?;
    let key = keys.key("attention.layer_norm_rms_epsilon");
    let eps = keys
        .metadata
        .float(&key)?
        .ok_or_else(|| FileError::missing(&key))?;
    let (rope, context_length) = super::rope::rope(&keys, head_dim, stated_context, rope_factors)?;
    let name = keys
        .metadata
        .string("general.name")?
        .filter(|name| limits::is_printable(name));
    let config = ModelConfig {
        architecture: keys.architecture,
        name: name.map_or(stem, str::to_owned),
        layers,
        hidden,
        intermediate: keys.size("feed_forward_length", &limits::WIDTH)?,
        heads,
        kv_heads,
        head_dim,
        vocabulary: vocabulary(&keys)?,
        context_length,
        norm_eps: limits::epsilon(&key, eps)?,
        rope,
        tied_embeddings: !untied,
        eos_ids: eos_ids(keys.metadata)?,
    };
    limits::check_relations(&config)?;
    if keys.window(config.context_length)? {
        let key = keys.key("attention.sliding_window");
        return Err(FileError::unsupported(
            &key,
            keys.metadata.count(&key)?.unwrap_or(0),
        ));
    }
    Ok(config)
}

fn vocabulary(keys: &Keys<'_>) -> Result<u32, FileError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let tokens = match keys.metadata.get(TOKENS) {
        Some(Value::Strings(tokens)) => tokens.len() as u64,
        Some(_) => return Err(super::value::wrong(TOKENS, "an array of strings")),
        None => return Err(FileError::missing(TOKENS)),
    };
    let stated = keys.optional_size("vocab_size", &limits::VOCABULARY)?;
    match stated {
        Some(rows) if tokens > u64::from(rows) => Err(FileError::out_of_range(
            "number of tokenizer.ggml.tokens",
            tokens,
            format!("0 to {rows}"),
        )),
        Some(rows) => Ok(rows),
        None => limits::within(
            "number of tokenizer.ggml.tokens",
            tokens,
            &limits::VOCABULARY,
        ),
    }
}

fn eos_ids(metadata: &Metadata) -> Result<Vec<u32>, FileError> {
    let mut ids = Vec::new();
    for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        if let Some(id) = super::text::token_id(metadata, name)?
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
    Ok(ids)
}
