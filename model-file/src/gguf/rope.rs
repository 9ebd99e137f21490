//! Rotary embedding of a GGUF file: `rope.*` keys and the tensor `rope_freqs.weight`.
//!
//! It must not know how frequencies are computed.

use super::keys::Keys;
use crate::{Architecture, FileError, Rope, RopePairing, RopeScaling, limits};

/// Rotary embedding, and the context length that it reaches.
pub(super) fn rope(
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
        attention_factor: None,
        attention_multiplier: attention.unwrap_or(1.0),
    };
    let key = keys.key(name);
    Ok((
        scaling,
        limits::yarn_context(&key, context, original, factor)?,
    ))
}
