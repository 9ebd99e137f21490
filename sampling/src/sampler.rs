//! Logits in, token out: a pure function of (logits, parameters, choice, position, tokens so far).
//!
//! Order: logit bias, repetition penalty, presence and frequency penalties, minimum length
//! ([`crate::adjust`]), temperature, top-k, min-p, top-p, draw. All in f32 with a fixed order of
//! operations. It must not know of batches, requests or models.
#![allow(clippy::inline_always)] // Inlined into one function per instruction set, or it is not vector code.

use std::fmt::Debug;

use crate::adjust::adjusted;
use crate::math::{exp_nonpositive, ln};
use crate::philox::uniform;
use crate::scan::{Peak, Scan};
use crate::select::{BLOCK, block_sum, block_sums, draw, nucleus, sum};
use crate::{LOGPROB_FLOOR, SamplingParams};

/// The chosen token and, if asked for, log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The chosen token.
    pub token_id: u32,
    /// Log-probabilities of the chosen token and of the most likely ones, if requested.
    pub logprobs: Option<TokenLogprobs>,
}

/// Log-probabilities (natural log, f32) at one position.
///
/// They are the log-softmax of the model's own logits, before bias, penalties, temperature and
/// filters; so they say what the model thought, and do not change with how it is sampled. Each is at
/// most 0 and at least [`LOGPROB_FLOOR`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, most likely first, ties by lowest id.
    pub top: Vec<(u32, f32)>,
}

/// Why no token could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The logits hold a NaN or plus infinity. (Minus infinity excludes a token.)
    #[error("logits of position {position} are not finite")]
    NotFinite {
        /// Completion index.
        position: u32,
    },
    /// Minimum length (and minus infinities of the model) together exclude every token.
    #[error("every token is excluded at position {position}")]
    NothingLeft {
        /// Completion index.
        position: u32,
    },
}

/// What the sampler needs to know of a sequence besides its parameters.
#[derive(Debug, Clone, Copy)]
pub struct SampleInput<'a> {
    /// One row, vocabulary wide.
    pub logits: &'a [f32],
    /// Prompt token ids (for the repetition penalty).
    pub prompt: &'a [u32],
    /// Completion so far; the new token's position is its length.
    pub completion: &'a [u32],
    /// Choice index.
    pub choice: u32,
    /// The model's end-of-sequence ids (for `min_tokens`).
    pub eos_ids: &'a [u32],
}

/// Chooses tokens and reports log-probabilities. A backend may do so with the instructions that it has:
/// every implementation gives the bits of [`sample`] and [`log_probabilities`].
pub trait Sampler: Debug + Send + Sync {
    /// As [`sample`].
    ///
    /// # Errors
    /// As [`sample`].
    fn sample(
        &self,
        params: &SamplingParams,
        input: &SampleInput<'_>,
    ) -> Result<Sampled, SampleError>;

    /// As [`log_probabilities`].
    fn log_probabilities(&self, logits: &[f32], token: u32, count: u32) -> Option<TokenLogprobs>;
}

/// The sampler in plain instructions.
#[derive(Debug, Clone, Copy)]
pub struct PlainSampler;

impl Sampler for PlainSampler {
    fn sample(
        &self,
        params: &SamplingParams,
        input: &SampleInput<'_>,
    ) -> Result<Sampled, SampleError> {
        sample(params, input)
    }

    fn log_probabilities(&self, logits: &[f32], token: u32, count: u32) -> Option<TokenLogprobs> {
        log_probabilities(logits, token, count)
    }
}

/// Chooses the token at completion index `input.completion.len()`.
///
/// Randomness is a counter-based generator keyed by (seed, choice, position): the result does not
/// depend on the batch or on what was sampled before. Greedy takes the largest adjusted logit, ties
/// by lowest id.
///
/// # Errors
/// Logits with a NaN or plus infinity, or nothing left to choose from.
#[inline(always)]
pub fn sample(params: &SamplingParams, input: &SampleInput<'_>) -> Result<Sampled, SampleError> {
    let position = input.completion.len() as u32;
    let logits = adjusted(params, input);
    let scan = Scan::of(&logits);
    let (index, max) = match scan.peak() {
        Peak::At { index, value } => (index, value),
        Peak::Nothing => return Err(SampleError::NothingLeft { position }),
        Peak::NotFinite => return Err(SampleError::NotFinite { position }),
    };
    let token_id = if params.is_greedy() {
        index as u32
    } else {
        let number = uniform(params.seed, input.choice, position);
        drawn(&logits, &scan, max, params, number)
    };
    let mut logprobs = None;
    if let Some(count) = params.logprobs {
        // A token was chosen, so some logit is finite; one that the minimum length hides may not be.
        let reported = log_probabilities(input.logits, token_id, count);
        logprobs = Some(reported.unwrap_or_else(excluded));
    }
    Ok(Sampled { token_id, logprobs })
}

/// Log-softmax of the model's logits for `token` and the `count` most likely ones; `None` if a NaN or
/// plus infinity is among them.
#[inline(always)]
pub fn log_probabilities(logits: &[f32], token: u32, count: u32) -> Option<TokenLogprobs> {
    let scan = Scan::of(logits);
    let max = match scan.peak() {
        Peak::At { value, .. } => value,
        Peak::Nothing => return Some(excluded()),
        Peak::NotFinite => return None,
    };
    let log_sum = ln(sum(&weight_sums(logits, max, 1.0)));
    let log_probability = |id: u32| {
        let logit = logits.get(id as usize).copied();
        let logit = logit.unwrap_or(f32::NEG_INFINITY);
        (logit - max - log_sum).clamp(LOGPROB_FLOOR, 0.0)
    };
    let top = scan.largest(count as usize).into_iter();
    Some(TokenLogprobs {
        chosen: log_probability(token),
        top: top.map(|id| (id, log_probability(id))).collect(),
    })
}

/// Of a row in which every token is excluded.
fn excluded() -> TokenLogprobs {
    TokenLogprobs {
        chosen: LOGPROB_FLOOR,
        top: Vec::new(),
    }
}

/// The token that the filters leave and `number` in `[0, 1)` picks: weights (of the most likely token:
/// 1) are laid end to end in ascending order of id.
#[inline(always)]
fn drawn(logits: &[f32], scan: &Scan<'_>, max: f32, params: &SamplingParams, number: f32) -> u32 {
    let scale = 1.0 / params.temperature;
    let k = params.top_k as usize;
    let keeps_all = k == 0 || k >= logits.len();
    if keeps_all && params.min_p <= 0.0 && params.top_p >= 1.0 {
        let sums = weight_sums(logits, max, scale);
        let block = |number| {
            let from = number * BLOCK;
            let values = &logits[from..logits.len().min(from + BLOCK)];
            weights_of(values, max, scale)
        };
        return draw(&sums, number, block) as u32;
    }
    let survivors = if keeps_all {
        Survivors::of_all(logits, scan, max, params)
    } else {
        Survivors::of_top_k(logits, scan, max, params)
    };
    let block = |number| survivors.weights.chunks(BLOCK).nth(number).unwrap_or(&[]);
    survivors.ids[draw(&block_sums(&survivors.weights), number, block)]
}

/// Tokens that the filters leave, in ascending order of id, with unnormalised probabilities (the
/// most likely token of the row has weight 1).
struct Survivors {
    ids: Vec<u32>,
    weights: Vec<f32>,
}

impl Survivors {
    #[inline(always)]
    fn of_top_k(logits: &[f32], scan: &Scan<'_>, max: f32, params: &SamplingParams) -> Self {
        let scale = 1.0 / params.temperature;
        let mut ids = scan.largest(params.top_k as usize);
        ids.sort_unstable();
        let weight = |&id: &u32| exp_nonpositive((logits[id as usize] - max) * scale);
        let weights = ids.iter().map(weight).collect();
        let mut survivors = Self { ids, weights };
        if params.min_p > 0.0 {
            let weights = &survivors.weights;
            let indices: Vec<u32> = (0..weights.len() as u32)
                .filter(|&i| weights[i as usize] >= params.min_p)
                .collect();
            survivors.keep(&indices);
        }
        let total = sum(&block_sums(&survivors.weights));
        survivors.keep_nucleus(params.top_p, total);
        survivors
    }

    /// With `min_p`, `top_p` or both, and no top-k.
    #[inline(always)]
    fn of_all(logits: &[f32], scan: &Scan<'_>, max: f32, params: &SamplingParams) -> Self {
        let scale = 1.0 / params.temperature;
        if params.min_p > 0.0 {
            let mut survivors = Self::at_least(params.min_p, scan, max, scale);
            let total = sum(&block_sums(&survivors.weights));
            survivors.keep_nucleus(params.top_p, total);
            return survivors;
        }
        let total = sum(&weight_sums(logits, max, scale));
        // If the tokens above a bar reach the share, the nucleus is among them: a high bar first.
        let mut survivors = Self::at_least(1e-4 * total, scan, max, scale);
        if sum(&block_sums(&survivors.weights)) < params.top_p * total {
            // All tokens below this bar together weigh half of what top-p drops.
            let least = (1.0 - params.top_p) * total / logits.len() as f32 * 0.5;
            survivors = Self::at_least(least, scan, max, scale);
        }
        survivors.keep_nucleus(params.top_p, total);
        survivors
    }

    /// Tokens whose weight is at least `least`.
    #[inline(always)]
    fn at_least(least: f32, scan: &Scan<'_>, max: f32, scale: f32) -> Self {
        /// Above the error of `exp_nonpositive` and `ln` together.
        const MARGIN: f32 = 1e-3;
        let lowest = ln(least.max(f32::MIN_POSITIVE)) - MARGIN;
        let exponent = |logit: f32| (logit - max) * scale;
        let (ids, weights) = scan.weighed(
            |logit| exponent(logit) >= lowest,
            |logit| exp_nonpositive(exponent(logit)),
            least,
        );
        Self { ids, weights }
    }

    fn keep_nucleus(&mut self, top_p: f32, total: f32) {
        if top_p < 1.0 {
            self.keep(&nucleus(&self.weights, top_p * total));
        }
    }

    /// Keeps the entries at these indices (ascending).
    fn keep(&mut self, indices: &[u32]) {
        let at = |&i: &u32| i as usize;
        self.weights = indices.iter().map(|i| self.weights[at(i)]).collect();
        self.ids = indices.iter().map(|i| self.ids[at(i)]).collect();
    }
}

/// Sums of the weights of a row's blocks of 256, without keeping the weights.
#[inline(always)]
fn weight_sums(logits: &[f32], max: f32, scale: f32) -> Vec<f32> {
    let mut sums = Vec::with_capacity(logits.len().div_ceil(BLOCK));
    let (blocks, rest) = logits.as_chunks::<BLOCK>();
    for block in blocks {
        sums.push(block_sum(&weights_of(block, max, scale)));
    }
    if !rest.is_empty() {
        // The zeros after them change no sum.
        sums.push(block_sum(&weights_of(rest, max, scale)));
    }
    sums
}

/// Weights of up to 256 values, then zeros.
#[inline(always)]
fn weights_of(values: &[f32], max: f32, scale: f32) -> [f32; BLOCK] {
    let mut weights = [0.0; BLOCK];
    for (weight, &value) in weights.iter_mut().zip(values) {
        *weight = exp_nonpositive((value - max) * scale);
    }
    weights
}
