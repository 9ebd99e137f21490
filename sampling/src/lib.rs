//! Sampling parameters and the exact, counter-keyed sampler.
//!
//! Pure: no clock, no I/O, no state between calls. It must not know of requests, pages or the wire.

#![forbid(unsafe_code)]

mod adjust;
mod error;
mod math;
mod params;
mod philox;
mod sampler;
mod scan;
mod select;
#[cfg(test)]
mod tests;

pub use error::ParamError;
pub use params::{
    GREEDY_TEMPERATURE, LOGPROB_FLOOR, MAX_BIAS, MAX_CHOICES, MAX_COMPLETION_TOKENS,
    MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_PENALTY, MAX_REPETITION_PENALTY, MAX_STOP_TOKEN_IDS,
    MAX_TEMPERATURE, MIN_REPETITION_PENALTY, SamplingParams,
};
pub use sampler::{
    PlainSampler, SampleError, SampleInput, Sampled, Sampler, TokenLogprobs, log_probabilities,
    sample,
};
