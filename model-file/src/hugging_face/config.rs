//! From `config.json` and `generation_config.json` to a [`ModelConfig`]: what is stated is applied or
//! refused by name.
//!
//! It must not know tensors or tokenizers.

use serde_json::Value;

use super::document::Document;
use crate::{Architecture, FileError, ModelConfig, limits};

/// The configuration, with no end-of-sequence ids yet. `name` is that of the directory;
/// `has_output` says whether the weights have an output matrix.
pub(super) fn config(
    json: &Document,
    name: String,
    has_output: bool,
) -> Result<ModelConfig, FileError> {
    let (architecture, class) = architecture(json)?;
    refuse_unsupported(json)?;
    let hidden = json.size("hidden_size", &limits::WIDTH)?;
    let heads = json.size("num_attention_heads", &limits::HEADS)?;
    let head_dim = match json.optional_size("head_dim", &limits::HEAD_DIM)? {
        Some(stated) => stated,
        // The class of Qwen3 has a default of its own here, so nothing may be guessed.
        None if hidden.is_multiple_of(heads) && architecture != Architecture::Qwen3 => {
            let key = json.key("hidden_size over num_attention_heads");
            limits::within(&key, u64::from(hidden / heads), &limits::HEAD_DIM)?
        }
        None => return Err(json.missing("head_dim")),
    };
    let stated_context = json.size("max_position_embeddings", &limits::CONTEXT)?;
    let eps = json
        .float("rms_norm_eps")?
        .ok_or_else(|| json.missing("rms_norm_eps"))?;
    let (rope, context_length) = super::rope::rope(json, head_dim, stated_context)?;
    refuse_window(json, class, context_length)?;
    let config = ModelConfig {
        architecture,
        name,
        layers: json.size("num_hidden_layers", &limits::LAYERS)?,
        hidden,
        intermediate: json.size("intermediate_size", &limits::WIDTH)?,
        heads,
        kv_heads: json
            .optional_size("num_key_value_heads", &limits::HEADS)?
            .unwrap_or(heads),
        head_dim,
        vocabulary: json.size("vocab_size", &limits::VOCABULARY)?,
        context_length,
        norm_eps: limits::epsilon(&json.key("rms_norm_eps"), eps)?,
        rope,
        // Where nothing is stated, weights without an output matrix can only be meant as tied.
        tied_embeddings: json.bool("tie_word_embeddings")?.unwrap_or(!has_output),
        eos_ids: Vec::new(),
    };
    limits::check_relations(&config)?;
    Ok(config)
}

/// All ids that end a sequence: `generation_config.json`, `config.json` and the tokenizer's own.
pub(super) fn eos_ids(
    json: &Document,
    generation: Option<&Document>,
    tokenizer: Option<u32>,
    config: &ModelConfig,
) -> Result<Vec<u32>, FileError> {
    const KEY: &str = "eos_token_id";
    let mut ids = Vec::new();
    for document in generation.into_iter().chain([json]) {
        ids.extend(document.token_ids(KEY, config.vocabulary)?);
    }
    ids.extend(tokenizer);
    let mut unique = Vec::new();
    for id in ids {
        if !unique.contains(&id) {
            unique.push(id);
        }
    }
    Ok(unique)
}

fn architecture(json: &Document) -> Result<(Architecture, &str), FileError> {
    const KEY: &str = "architectures";
    let class = match json.value(KEY) {
        None => return Err(json.missing(KEY)),
        Some(Value::Array(classes)) => match classes.as_slice() {
            [Value::String(class)] => class,
            _ => return Err(json.wrong(KEY, "a list of one class name")),
        },
        Some(_) => return Err(json.wrong(KEY, "a list of one class name")),
    };
    match class.as_str() {
        "LlamaForCausalLM" | "MistralForCausalLM" => Ok((Architecture::Llama, class)),
        "Qwen2ForCausalLM" => Ok((Architecture::Qwen2, class)),
        "Qwen3ForCausalLM" => Ok((Architecture::Qwen3, class)),
        other => Err(json.unsupported(KEY, other)),
    }
}

fn refuse_unsupported(json: &Document) -> Result<(), FileError> {
    if let Some(activation) = json.string("hidden_act")?
        && !matches!(activation, "silu" | "swish")
    {
        return Err(json.unsupported("hidden_act", activation));
    }
    for key in ["attention_bias", "mlp_bias"] {
        if json.bool(key)? == Some(true) {
            return Err(json.unsupported(key, true));
        }
    }
    if json.value("quantization_config").is_some() {
        return Err(json.unsupported("quantization_config", "set"));
    }
    json.refuse_unless("partial_rotary_factor", 1.0)?;
    if let Some(Value::Array(kinds)) = json.value("layer_types")
        && let Some(other) = kinds
            .iter()
            .find(|kind| kind.as_str() != Some("full_attention"))
    {
        return Err(json.unsupported("layer_types", other));
    }
    Ok(())
}

/// Refuses a sliding window that a sequence can outgrow. Qwen files state one that is off.
fn refuse_window(json: &Document, class: &str, context: u32) -> Result<(), FileError> {
    const KEY: &str = "sliding_window";
    let switched = class.starts_with("Qwen");
    if switched && !json.bool("use_sliding_window")?.unwrap_or(false) {
        return Ok(());
    }
    match json.optional_size(KEY, &(0..=u64::from(u32::MAX)))? {
        Some(window) if window < context => Err(json.unsupported(KEY, window)),
        _ => Ok(()),
    }
}
