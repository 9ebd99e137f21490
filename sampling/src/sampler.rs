//! Logits in, token out: a pure function of (logits, parameters, choice, position, tokens so far).
//!
//! Order: logit bias, repetition penalty, presence and frequency penalties, minimum length
//! ([`crate::adjust`]), temperature, top-k, min-p, top-p, draw. All in f32 with a fixed order of
//! operations. It must not know of batches, requests or models.

use crate::adjust::adjusted;
use crate::math::{exp_row, ln};
use crate::philox::uniform;
use crate::select::{Peak, draw, largest, nucleus, peak, sum};
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
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
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

/// Chooses the token at completion index `input.completion.len()`.
///
/// Randomness is a counter-based generator keyed by (seed, choice, position): the result does not
/// depend on the batch or on what was sampled before. Greedy takes the largest adjusted logit, ties
/// by lowest id.
///
/// # Errors
/// Logits with a NaN or plus infinity, or nothing left to choose from.
pub fn sample(params: &SamplingParams, input: &SampleInput<'_>) -> Result<Sampled, SampleError> {
    let position = input.completion.len() as u32;
    let logits = adjusted(params, input);
    let (index, value) = match peak(&logits) {
        Peak::At { index, value } => (index, value),
        Peak::Nothing => return Err(SampleError::NothingLeft { position }),
        Peak::NotFinite => return Err(SampleError::NotFinite { position }),
    };
    let token_id = if params.is_greedy() {
        index as u32
    } else {
        let survivors = Survivors::new(&logits, value, params);
        let number = uniform(params.seed, input.choice, position);
        survivors.id(draw(&survivors.weights, number))
    };
    let logprobs = params
        .logprobs
        .map(|count| log_probabilities(input.logits, token_id, count as usize));
    Ok(Sampled { token_id, logprobs })
}

/// Tokens that the filters leave, in ascending order of id, with unnormalised probabilities (the
/// most likely token of the row has weight 1).
struct Survivors {
    weights: Vec<f32>,
    /// `None` while no filter has dropped any: the index is the id.
    ids: Option<Vec<u32>>,
}

impl Survivors {
    fn new(logits: &[f32], max: f32, params: &SamplingParams) -> Self {
        let scale = 1.0 / params.temperature;
        let k = params.top_k as usize;
        let mut survivors = if k == 0 || k >= logits.len() {
            Self {
                weights: exp_row(logits, max, scale),
                ids: None,
            }
        } else {
            let mut ids = largest(logits, k);
            ids.sort_unstable();
            let kept: Vec<f32> = ids.iter().map(|&id| logits[id as usize]).collect();
            Self {
                weights: exp_row(&kept, max, scale),
                ids: Some(ids),
            }
        };
        if params.min_p > 0.0 {
            let kept = (0..survivors.weights.len() as u32)
                .filter(|&i| survivors.weights[i as usize] >= params.min_p)
                .collect();
            survivors.keep(kept);
        }
        if params.top_p < 1.0 {
            let kept = nucleus(&survivors.weights, params.top_p);
            survivors.keep(kept);
        }
        survivors
    }

    /// Keeps the entries at these indices (ascending).
    fn keep(&mut self, indices: Vec<u32>) {
        self.weights = indices.iter().map(|&i| self.weights[i as usize]).collect();
        self.ids = Some(match &self.ids {
            None => indices,
            Some(ids) => indices.iter().map(|&i| ids[i as usize]).collect(),
        });
    }

    fn id(&self, index: usize) -> u32 {
        self.ids.as_ref().map_or(index as u32, |ids| ids[index])
    }
}

/// Log-softmax of the model's logits for the chosen token and the `count` most likely ones.
fn log_probabilities(logits: &[f32], chosen: u32, count: usize) -> TokenLogprobs {
    let Peak::At { value: max, .. } = peak(logits) else {
        // A token was chosen, so some logit is finite; one that the minimum length hides may not be.
        return TokenLogprobs {
            chosen: LOGPROB_FLOOR,
            top: Vec::new(),
        };
    };
    let log_sum = ln(sum(&exp_row(logits, max, 1.0)));
    let log_probability = |id: u32| (logits[id as usize] - max - log_sum).clamp(LOGPROB_FLOOR, 0.0);
    TokenLogprobs {
        chosen: log_probability(chosen),
        top: largest(logits, count)
            .into_iter()
            .map(|id| (id, log_probability(id)))
            .collect(),
    }
}
