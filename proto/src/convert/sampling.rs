//! Sampling parameters: clients' options with their gaps, and the complete ones that legs carry.
//!
//! It must not know the model beyond its vocabulary.

use baton_sampling::{MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, SamplingParams};

use super::check::{entries, length, present};
use crate::error::ConvertError;
use crate::limits::{MAX_STOP_BYTES, MAX_STOP_STRINGS};
use crate::v1;

/// What the router puts in the place of absent fields, once, at admission.
#[derive(Debug, Clone, Copy)]
pub struct AdmissionDefaults {
    /// For an absent `seed`: drawn at random for each request.
    pub seed: u64,
    /// For an absent `max_tokens`.
    pub max_tokens: u32,
}

/// A client's options with defaults filled in, checked against their limits and the vocabulary.
///
/// Absent: temperature 1, `top_p` 1, `top_k` 0, `min_p` 0, n 1, repetition penalty 1.
///
/// # Errors
/// The first field out of range.
pub fn sampling_from_wire(
    options: &v1::SamplingOptions,
    defaults: AdmissionDefaults,
    vocabulary: u32,
) -> Result<SamplingParams, ConvertError> {
    entries("logit_bias", options.logit_bias.len(), MAX_LOGIT_BIAS)?;
    entries(
        "stop_token_ids",
        options.stop_token_ids.len(),
        MAX_STOP_TOKEN_IDS,
    )?;
    let params = SamplingParams {
        temperature: options.temperature.unwrap_or(1.0),
        top_p: options.top_p.unwrap_or(1.0),
        top_k: options.top_k.unwrap_or(0),
        min_p: options.min_p.unwrap_or(0.0),
        seed: options.seed.unwrap_or(defaults.seed),
        choices: options.n.unwrap_or(1),
        max_tokens: options.max_tokens.unwrap_or(defaults.max_tokens),
        min_tokens: options.min_tokens,
        presence_penalty: options.presence_penalty,
        frequency_penalty: options.frequency_penalty,
        repetition_penalty: options.repetition_penalty.unwrap_or(1.0),
        logit_bias: options
            .logit_bias
            .iter()
            .map(|(&id, &bias)| (id, bias))
            .collect(),
        stop_token_ids: options.stop_token_ids.clone(),
        ignore_eos: options.ignore_eos,
        logprobs: options.logprobs,
        prompt_logprobs: options.prompt_logprobs,
    };
    Ok(params.validate(vocabulary)?)
}

/// The options of a leg: like [`sampling_from_wire`], but what admission fixes must be there.
///
/// # Errors
/// A missing field, or the first one out of range.
pub fn admitted_sampling_from_wire(
    options: &v1::SamplingOptions,
    vocabulary: u32,
) -> Result<SamplingParams, ConvertError> {
    present("sampling.temperature", options.temperature)?;
    present("sampling.n", options.n)?;
    let seed = present("sampling.seed", options.seed)?;
    let max_tokens = present("sampling.max_tokens", options.max_tokens)?;
    sampling_from_wire(options, AdmissionDefaults { seed, max_tokens }, vocabulary)
}

/// Stop strings: at most [`MAX_STOP_STRINGS`], none empty, each at most [`MAX_STOP_BYTES`] bytes.
///
/// # Errors
/// Too many, too long, or an empty one.
pub fn stop_strings_from_wire(options: &v1::SamplingOptions) -> Result<Vec<String>, ConvertError> {
    entries("stop", options.stop.len(), MAX_STOP_STRINGS)?;
    for stop in &options.stop {
        if stop.is_empty() {
            return Err(ConvertError::OutOfRange {
                field: "stop",
                value: "an empty string".into(),
                allowed: "strings that are not empty".into(),
            });
        }
        length("stop", "bytes", stop.len(), MAX_STOP_BYTES)?;
    }
    Ok(options.stop.clone())
}

/// Complete options for a leg. Stop strings stay in the router.
pub fn sampling_to_wire(params: &SamplingParams) -> v1::SamplingOptions {
    v1::SamplingOptions {
        temperature: Some(params.temperature),
        top_p: Some(params.top_p),
        top_k: Some(params.top_k),
        min_p: Some(params.min_p),
        seed: Some(params.seed),
        n: Some(params.choices),
        max_tokens: Some(params.max_tokens),
        min_tokens: params.min_tokens,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        repetition_penalty: Some(params.repetition_penalty),
        logit_bias: params
            .logit_bias
            .iter()
            .map(|(&id, &bias)| (id, bias))
            .collect(),
        stop_token_ids: params.stop_token_ids.clone(),
        stop: Vec::new(),
        ignore_eos: params.ignore_eos,
        logprobs: params.logprobs,
        prompt_logprobs: params.prompt_logprobs,
    }
}
