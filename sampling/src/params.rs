//! Sampling parameters as every part of the system agrees on them.
//!
//! Whatever comes from outside passes [`SamplingParams::validate`] before it is used. It must not know
//! of requests, models or the wire.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::ParamError;

/// Everything that decides which token follows given logits, with all defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// In `[0, MAX_TEMPERATURE]`; below [`GREEDY_TEMPERATURE`] the most likely token is taken.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; in `(0, 1]`.
    pub top_p: f32,
    /// Keep the `top_k` most likely tokens; 0, or as many as the vocabulary, keeps all.
    pub top_k: u32,
    /// Drop tokens less likely than `min_p` times the most likely; in `[0, 1]`.
    pub min_p: f32,
    /// Seed of the counter-based generator. Fixed by the router at admission.
    pub seed: u64,
    /// Number of independent choices, `1..=MAX_CHOICES`.
    pub choices: u32,
    /// Most completion tokens per choice, `1..=MAX_COMPLETION_TOKENS` (a model's context bounds it
    /// further).
    pub max_tokens: u32,
    /// No end-of-sequence or stop token before this many completion tokens; at most `max_tokens`.
    pub min_tokens: u32,
    /// Subtracted once from the logit of every token already in the completion; in `[-2, 2]`.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit per occurrence in the completion; in `[-2, 2]`.
    pub frequency_penalty: f32,
    /// Divides (positive) or multiplies (negative) logits of tokens already in
    /// prompt or completion, once per token; in `[MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY]`,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens, in `[-100, 100]`; at most [`MAX_LOGIT_BIAS`] entries.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Token ids that end a choice (besides the model's end-of-sequence ids); at most
    /// [`MAX_STOP_TOKEN_IDS`].
    pub stop_token_ids: Vec<u32>,
    /// Go on past the model's end-of-sequence ids.
    pub ignore_eos: bool,
    /// Report the log-probability of the chosen token and of this many most likely ones,
    /// `0..=MAX_LOGPROBS`.
    pub logprobs: Option<u32>,
    /// Report the log-probability of every prompt token but the first, given those before it, and of
    /// this many most likely ones in its place, `0..=MAX_LOGPROBS`.
    pub prompt_logprobs: Option<u32>,
}

/// Temperatures below this are computed as greedy (documented epsilon).
pub const GREEDY_TEMPERATURE: f32 = 1e-4;
/// Highest temperature.
pub const MAX_TEMPERATURE: f32 = 10.0;
/// Lowest repetition penalty.
pub const MIN_REPETITION_PENALTY: f32 = 0.01;
/// Highest repetition penalty.
pub const MAX_REPETITION_PENALTY: f32 = 10.0;
/// Presence and frequency penalties lie in `[-MAX_PENALTY, MAX_PENALTY]`.
pub const MAX_PENALTY: f32 = 2.0;
/// A logit bias lies in `[-MAX_BIAS, MAX_BIAS]`.
pub const MAX_BIAS: f32 = 100.0;
/// Most completion tokens that may be asked for.
pub const MAX_COMPLETION_TOKENS: u32 = 1 << 20;
/// Most choices of one request.
pub const MAX_CHOICES: u32 = 16;
/// Most alternatives reported per token.
pub const MAX_LOGPROBS: u32 = 20;
/// Most entries of a logit bias.
pub const MAX_LOGIT_BIAS: usize = 300;
/// Most stop token ids.
pub const MAX_STOP_TOKEN_IDS: usize = 64;
/// Lowest log-probability ever reported: stands for minus infinity, which JSON cannot write.
pub const LOGPROB_FLOOR: f32 = -9999.0;

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            choices: 1,
            max_tokens: 128,
            min_tokens: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: BTreeMap::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Checks every field against its limits and the vocabulary (number of token ids).
    ///
    /// # Errors
    /// The first field out of range, with its value and what is allowed.
    pub fn validate(self, vocabulary: u32) -> Result<Self, ParamError> {
        float("temperature", self.temperature, 0.0, MAX_TEMPERATURE)?;
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(refuse("top_p", self.top_p, "above 0, up to 1"));
        }
        float("min_p", self.min_p, 0.0, 1.0)?;
        integer("n", self.choices, 1, MAX_CHOICES)?;
        integer("max_tokens", self.max_tokens, 1, MAX_COMPLETION_TOKENS)?;
        integer("min_tokens", self.min_tokens, 0, self.max_tokens)?;
        for (field, value) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            float(field, value, -MAX_PENALTY, MAX_PENALTY)?;
        }
        float(
            "repetition_penalty",
            self.repetition_penalty,
            MIN_REPETITION_PENALTY,
            MAX_REPETITION_PENALTY,
        )?;
        count("logit_bias", self.logit_bias.len(), MAX_LOGIT_BIAS)?;
        for (&id, &bias) in &self.logit_bias {
            token("logit_bias", id, vocabulary)?;
            float("logit_bias", bias, -MAX_BIAS, MAX_BIAS)?;
        }
        count(
            "stop_token_ids",
            self.stop_token_ids.len(),
            MAX_STOP_TOKEN_IDS,
        )?;
        for &id in &self.stop_token_ids {
            token("stop_token_ids", id, vocabulary)?;
        }
        for (field, count) in [
            ("logprobs", self.logprobs),
            ("prompt_logprobs", self.prompt_logprobs),
        ] {
            integer(field, count.unwrap_or(0), 0, MAX_LOGPROBS)?;
        }
        Ok(self)
    }

    /// Whether the most likely token is taken without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_TEMPERATURE
    }
}

fn float(field: &'static str, value: f32, low: f32, high: f32) -> Result<(), ParamError> {
    // A NaN is in no range.
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(refuse(field, value, format!("{low} to {high}")))
}

fn integer(field: &'static str, value: u32, low: u32, high: u32) -> Result<(), ParamError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(refuse(field, value, format!("{low} to {high}")))
}

fn count(field: &'static str, entries: usize, most: usize) -> Result<(), ParamError> {
    if entries <= most {
        return Ok(());
    }
    let value = format!("a list of {entries}");
    Err(refuse(field, value, format!("at most {most} entries")))
}

fn token(field: &'static str, id: u32, vocabulary: u32) -> Result<(), ParamError> {
    if id < vocabulary {
        return Ok(());
    }
    let value = format!("token id {id}");
    Err(refuse(field, value, format!("ids below {vocabulary}")))
}

fn refuse(field: &'static str, value: impl Display, allowed: impl Into<String>) -> ParamError {
    ParamError::OutOfRange {
        field,
        value: value.to_string(),
        allowed: allowed.into(),
    }
}
