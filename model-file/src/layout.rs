//! Which tensors a model of a given configuration has, and whether a file holds them all.
//!
//! It must not know file formats: names are canonical, and the error spells them as the caller's
//! file does.

use std::collections::{HashMap, HashSet};

use crate::error::Misshapen;
use crate::stored::Stored;
use crate::{Architecture, FileError, ModelConfig};

/// Canonical name of the token embedding.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
/// Canonical name of the output matrix of models that do not tie it to the embedding.
pub(crate) const OUTPUT: &str = "lm_head.weight";
/// Explicit divisors of rotary frequencies; part of the configuration.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Most bytes of that tensor: half the largest head dimension in `f32`.
pub(crate) const MAX_ROPE_FACTORS_BYTES: u64 = 2048;

/// Parameters that would change the result if a model had them and they were left out.
const MEANINGFUL: [&str; 9] = [
    "self_attn.q_proj.bias",
    "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",
    "self_attn.o_proj.bias",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "mlp.gate_proj.bias",
    "mlp.up_proj.bias",
    "mlp.down_proj.bias",
];

/// Name, rows and columns of every tensor of the model.
pub(crate) fn expected(config: &ModelConfig) -> Vec<(String, [usize; 2])> {
    let size = |value: u32| value as usize;
    let (hidden, intermediate) = (size(config.hidden), size(config.intermediate));
    let queries = size(config.heads) * size(config.head_dim);
    let keys = size(config.kv_heads) * size(config.head_dim);
    let mut layer = vec![
        ("input_layernorm.weight", [1, hidden]),
        ("self_attn.q_proj.weight", [queries, hidden]),
        ("self_attn.k_proj.weight", [keys, hidden]),
        ("self_attn.v_proj.weight", [keys, hidden]),
        ("self_attn.o_proj.weight", [hidden, queries]),
        ("post_attention_layernorm.weight", [1, hidden]),
        ("mlp.gate_proj.weight", [intermediate, hidden]),
        ("mlp.up_proj.weight", [intermediate, hidden]),
        ("mlp.down_proj.weight", [hidden, intermediate]),
    ];
    match config.architecture {
        Architecture::Llama => {}
        Architecture::Qwen2 => layer.extend([
            ("self_attn.q_proj.bias", [1, queries]),
            ("self_attn.k_proj.bias", [1, keys]),
            ("self_attn.v_proj.bias", [1, keys]),
        ]),
        Architecture::Qwen3 => layer.extend([
            ("self_attn.q_norm.weight", [1, size(config.head_dim)]),
            ("self_attn.k_norm.weight", [1, size(config.head_dim)]),
        ]),
    }
    let vocabulary = size(config.vocabulary);
    let mut all = vec![(EMBEDDING.to_owned(), [vocabulary, hidden])];
    for index in 0..config.layers {
        let named = layer
            .iter()
            .map(|(name, shape)| (format!("model.layers.{index}.{name}"), *shape));
        all.extend(named);
    }
    all.push(("model.norm.weight".to_owned(), [1, hidden]));
    if !config.tied_embeddings {
        all.push((OUTPUT.to_owned(), [vocabulary, hidden]));
    }
    all
}

/// Compares the tensors of a file with those of its configuration; gives warnings for tensors that
/// the model does not use.
///
/// `native` spells a canonical name as the file format does.
pub(crate) fn check(
    config: &ModelConfig,
    tensors: &HashMap<String, Stored>,
    native: fn(&str) -> String,
) -> Result<Vec<String>, FileError> {
    let (mut missing, mut misshapen) = (Vec::new(), Vec::new());
    let mut known = HashSet::new();
    for (name, shape) in expected(config) {
        match tensors.get(&name) {
            None => missing.push(native(&name)),
            Some(stored) if [stored.info.rows, stored.info.columns] != shape => {
                misshapen.push(Misshapen {
                    name: stored.native.clone(),
                    found: [stored.info.rows, stored.info.columns],
                    expected: shape,
                });
            }
            Some(_) => {}
        }
        known.insert(name);
    }
    if !missing.is_empty() || !misshapen.is_empty() {
        return Err(FileError::Incomplete { missing, misshapen });
    }
    let mut warnings = Vec::new();
    for (name, stored) in tensors.iter().filter(|(name, _)| !known.contains(*name)) {
        if MEANINGFUL.iter().any(|end| name.ends_with(end)) {
            return Err(FileError::UnsupportedTensor {
                name: stored.native.clone(),
            });
        }
        if name != ROPE_FACTORS {
            warnings.push(format!(
                "tensor {:?} is not part of the model",
                stored.native
            ));
        }
    }
    warnings.sort();
    Ok(warnings)
}
