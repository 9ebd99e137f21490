//! From GGUF metadata to a [`ModelConfig`]: what is stated is applied or refused by name.
//!
//! It must not know tensor data; frequency factors are handed in.

use super::GgufHeader;
use super::value::{Metadata, Value};
use crate::limits;
use crate::{Architecture, FileError, ModelConfig, Rope, RopePairing, RopeScaling};

/// Keys (after the architecture) that change the result and are not applied, with the numbers
/// that leave it as it is.
const NOT_APPLIED: [(&str, &[f32]); 9] = [
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.scale", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
];

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
    let (rope, context_length) = rope(&keys, head_dim, stated_context, rope_factors)?;
    let name = keys
        .metadata
        .string("general.name")?
        .filter(|name| !name.is_empty());
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

/// Metadata of one architecture, whose keys begin with its name.
struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'a str,
    architecture: Architecture,
}

impl<'a> Keys<'a> {
    fn new(metadata: &'a Metadata) -> Result<Self, FileError> {
        const KEY: &str = "general.architecture";
        let prefix = metadata
            .string(KEY)?
            .ok_or_else(|| FileError::missing(KEY))?;
        let architecture = match prefix {
            "llama" => Architecture::Llama,
            "qwen2" => Architecture::Qwen2,
            "qwen3" => Architecture::Qwen3,
            other => return Err(FileError::unsupported(KEY, other)),
        };
        Ok(Self {
            metadata,
            prefix,
            architecture,
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn optional_size(
        &self,
        name: &str,
        range: &std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u32>, FileError> {
        let key = self.key(name);
        self.metadata
            .count(&key)?
            .map(|value| limits::within(&key, value, range))
            .transpose()
    }

    fn size(&self, name: &str, range: &std::ops::RangeInclusive<u64>) -> Result<u32, FileError> {
        self.optional_size(name, range)?
            .ok_or_else(|| FileError::missing(self.key(name)))
    }

    fn float(&self, name: &str) -> Result<Option<f32>, FileError> {
        self.metadata.float(&self.key(name))
    }

    fn positive(&self, name: &str) -> Result<Option<f32>, FileError> {
        self.float(name)?
            .map(|value| limits::positive(&self.key(name), value))
            .transpose()
    }

    fn require_equal(&self, name: &str, wanted: u32) -> Result<(), FileError> {
        let key = self.key(name);
        match self.metadata.count(&key)? {
            Some(value) if value != u64::from(wanted) => Err(FileError::Unsupported {
                value: format!("{value} (the head dimension is {wanted})"),
                key,
            }),
            _ => Ok(()),
        }
    }

    /// Whether attention is limited to a window that a sequence can outgrow.
    fn window(&self, context: u32) -> Result<bool, FileError> {
        let window = self
            .metadata
            .count(&self.key("attention.sliding_window"))?
            .unwrap_or(0);
        Ok(window != 0 && window < u64::from(context))
    }

    fn refuse_unsupported(&self) -> Result<(), FileError> {
        if let Some(kind) = self.metadata.string("general.type")?
            && kind != "model"
        {
            return Err(FileError::unsupported("general.type", kind));
        }
        for key in ["split.count".to_owned(), self.key("expert_count")] {
            let most = u64::from(key == "split.count");
            if let Some(value) = self.metadata.count(&key)?.filter(|&value| value > most) {
                return Err(FileError::unsupported(key, value));
            }
        }
        for (name, neutral) in NOT_APPLIED {
            if let Some(value) = self.float(name)?.filter(|value| !neutral.contains(value)) {
                return Err(FileError::unsupported(self.key(name), value));
            }
        }
        let causal = self.key("attention.causal");
        if self.metadata.bool(&causal)? == Some(false) {
            return Err(FileError::unsupported(causal, false));
        }
        Ok(())
    }
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

/// Rotary embedding, and the context length that it reaches.
fn rope(
    keys: &Keys<'_>,
    head_dim: u32,
    context: u32,
    factors: Option<Vec<f32>>,
) -> Result<(Rope, u32), FileError> {
    keys.require_equal("rope.dimension_count", head_dim)?;
    let (mut scaling, context) = stated_scaling(keys, context)?;
    if let Some(factors) = factors {
        if scaling != RopeScaling::None {
            let value = format!("{scaling:?} together with rope_freqs.weight");
            return Err(FileError::unsupported(keys.key("rope.scaling.type"), value));
        }
        if factors.len() != head_dim as usize / 2 {
            let range = format!("{} (half the head dimension)", head_dim / 2);
            return Err(FileError::out_of_range(
                "number of values of rope_freqs.weight",
                factors.len(),
                range,
            ));
        }
        for &factor in &factors {
            limits::positive("rope_freqs.weight", factor)?;
        }
        scaling = RopeScaling::Factors(factors);
    }
    let rope = Rope {
        theta: keys
            .positive("rope.freq_base")?
            .unwrap_or(limits::DEFAULT_ROPE_THETA),
        dimensions: head_dim,
        // The converter of llama-architecture files permutes the rows of Q and K.
        pairing: match keys.architecture {
            Architecture::Llama => RopePairing::Interleaved,
            Architecture::Qwen2 | Architecture::Qwen3 => RopePairing::HalfSplit,
        },
        scaling,
    };
    Ok((rope, context))
}

/// `rope.scaling.*`. As in llama.cpp, a factor without a type is linear, the older key
/// `rope.scale_linear` is read too, and the attention factor of `YaRN` is
/// `attn_factor * (0.1 ln(factor) + 1)`.
fn stated_scaling(keys: &Keys<'_>, context: u32) -> Result<(RopeScaling, u32), FileError> {
    let factor = match keys.float("rope.scaling.factor")? {
        Some(factor) => Some(("rope.scaling.factor", factor)),
        None => keys
            .float("rope.scale_linear")?
            .map(|factor| ("rope.scale_linear", factor)),
    };
    // Writers put 0 where there is no scaling.
    let factor = factor.filter(|&(_, factor)| factor != 0.0);
    let factor = factor
        .map(|(name, factor)| limits::positive(&keys.key(name), factor))
        .transpose()?;
    let key = keys.key("rope.scaling.type");
    let kind = keys.metadata.string(&key)?.unwrap_or("linear");
    match (kind, factor) {
        ("none", _) | ("linear", None | Some(1.0)) => Ok((RopeScaling::None, context)),
        ("linear", Some(factor)) => Ok((RopeScaling::Linear { factor }, context)),
        ("yarn", None) => Err(FileError::missing(keys.key("rope.scaling.factor"))),
        ("yarn", Some(factor)) => yarn(keys, factor, context),
        (other, _) => Err(FileError::unsupported(key, other)),
    }
}

fn yarn(keys: &Keys<'_>, factor: f32, context: u32) -> Result<(RopeScaling, u32), FileError> {
    let name = "rope.scaling.original_context_length";
    let original = keys
        .optional_size(name, &limits::CONTEXT)?
        .unwrap_or(context);
    let attention = match keys.positive("rope.scaling.attn_factor")? {
        Some(attention) => Some(attention),
        None => keys.positive("rope.scaling.yarn_attn_factor")?,
    };
    if let Some(extrapolation) = keys.float("rope.scaling.yarn_ext_factor")?
        && !matches!(extrapolation, -1.0 | 1.0)
    {
        let key = keys.key("rope.scaling.yarn_ext_factor");
        return Err(FileError::unsupported(key, extrapolation));
    }
    let scaling = RopeScaling::Yarn {
        factor,
        original_context: original,
        beta_fast: keys
            .positive("rope.scaling.yarn_beta_fast")?
            .unwrap_or(32.0),
        beta_slow: keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        attention_factor: attention.map(|attention| attention * (0.1 * factor.ln() + 1.0)),
    };
    let key = keys.key(name);
    Ok((
        scaling,
        limits::yarn_context(&key, context, original, factor)?,
    ))
}
