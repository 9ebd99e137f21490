//! Rotary embedding of a config.json: `rope_theta` and `rope_scaling`, or `rope_parameters`, which
//! newer files have instead of both.
//!
//! It must not know how frequencies are computed.

use super::document::Document;
use crate::{FileError, Rope, RopePairing, RopeScaling, limits};

/// Rotary embedding, and the context length that it reaches.
pub(super) fn rope(json: &Document, head_dim: u32, context: u32) -> Result<(Rope, u32), FileError> {
    let parameters = json.child("rope_parameters")?;
    let scaling = match parameters {
        Some(_) => None,
        None => json.child("rope_scaling")?,
    };
    let stated = parameters.as_ref().or(scaling.as_ref());
    let theta = match &parameters {
        Some(parameters) => parameters.positive("rope_theta")?,
        None => None,
    };
    let theta = match theta {
        Some(theta) => Some(theta),
        None => json.positive("rope_theta")?,
    };
    let (scaling, context) = match stated {
        None => (RopeScaling::None, context),
        Some(stated) => stated_scaling(stated, context)?,
    };
    let rope = Rope {
        theta: theta.unwrap_or(limits::DEFAULT_ROPE_THETA),
        dimensions: head_dim,
        pairing: RopePairing::HalfSplit,
        scaling,
    };
    Ok((rope, context))
}

fn stated_scaling(stated: &Document, context: u32) -> Result<(RopeScaling, u32), FileError> {
    let key = if stated.value("rope_type").is_some() {
        "rope_type"
    } else {
        "type"
    };
    let kind = stated
        .string(key)?
        .ok_or_else(|| stated.missing("rope_type"))?;
    stated.refuse_unless("partial_rotary_factor", 1.0)?;
    let required = |key: &str| stated.positive(key)?.ok_or_else(|| stated.missing(key));
    match kind {
        "default" => Ok((RopeScaling::None, context)),
        "linear" => Ok((
            RopeScaling::Linear {
                factor: required("factor")?,
            },
            context,
        )),
        "llama3" => {
            let scaling = RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_context: stated.size(ORIGINAL, &limits::CONTEXT)?,
            };
            check_llama3(stated, &scaling)?;
            Ok((scaling, context))
        }
        "yarn" => yarn(stated, required("factor")?, context),
        other => Err(stated.unsupported(key, other)),
    }
}

const ORIGINAL: &str = "original_max_position_embeddings";

fn check_llama3(stated: &Document, scaling: &RopeScaling) -> Result<(), FileError> {
    match scaling {
        RopeScaling::Llama3 {
            low_freq_factor,
            high_freq_factor,
            ..
        } if low_freq_factor >= high_freq_factor => {
            let range = format!("the numbers below high_freq_factor ({high_freq_factor})");
            Err(FileError::out_of_range(
                stated.key("low_freq_factor"),
                low_freq_factor,
                range,
            ))
        }
        _ => Ok(()),
    }
}

/// `mscale` and `mscale_all_dim` belong to other families and are refused, as is `truncate` off.
fn yarn(stated: &Document, factor: f32, context: u32) -> Result<(RopeScaling, u32), FileError> {
    for key in ["mscale", "mscale_all_dim"] {
        if let Some(value) = stated.value(key) {
            return Err(stated.unsupported(key, value));
        }
    }
    if stated.bool("truncate")? == Some(false) {
        return Err(stated.unsupported("truncate", false));
    }
    let original = stated
        .optional_size(ORIGINAL, &limits::CONTEXT)?
        .unwrap_or(context);
    let scaling = RopeScaling::Yarn {
        factor,
        original_context: original,
        beta_fast: stated.positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: stated.positive("beta_slow")?.unwrap_or(1.0),
        attention_factor: stated.positive("attention_factor")?,
        attention_multiplier: 1.0,
    };
    Ok((
        scaling,
        limits::yarn_context(&stated.key("factor"), context, original, factor)?,
    ))
}
