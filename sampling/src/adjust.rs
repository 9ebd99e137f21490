//! What changes single logits before any token is dropped: bias, penalties, minimum length.
//!
//! Order: logit bias, repetition penalty, presence and frequency penalties, minimum length. A result
//! is clamped to finite f32, so that only the minimum length can exclude a token (minus infinity).
//! Must not know of probabilities.

use std::borrow::Cow;

use crate::{SampleInput, SamplingParams};

/// The logits after all adjustments; borrowed when there are none.
pub(crate) fn adjusted<'a>(params: &SamplingParams, input: &SampleInput<'a>) -> Cow<'a, [f32]> {
    let mut logits = Cow::Borrowed(input.logits);
    if !params.logit_bias.is_empty() {
        let row = logits.to_mut();
        for (&id, &bias) in &params.logit_bias {
            change(row, id, |logit| logit + bias);
        }
    }
    if differs(params.repetition_penalty, 1.0) {
        let row = logits.to_mut();
        let penalty = params.repetition_penalty;
        for_each_distinct(row.len(), input.prompt, input.completion, |id| {
            change(row, id, |logit| {
                if logit > 0.0 {
                    logit / penalty
                } else {
                    logit * penalty
                }
            });
        });
    }
    let penalised = differs(params.presence_penalty, 0.0) || differs(params.frequency_penalty, 0.0);
    if penalised && !input.completion.is_empty() {
        let row = logits.to_mut();
        let mut sorted = input.completion.to_vec();
        sorted.sort_unstable();
        for run in sorted.chunk_by(|a, b| a == b) {
            let drop = params.presence_penalty + params.frequency_penalty * run.len() as f32;
            change(row, run[0], |logit| logit - drop);
        }
    }
    if (input.completion.len() as u64) < u64::from(params.min_tokens) {
        let row = logits.to_mut();
        for &id in input.eos_ids.iter().chain(&params.stop_token_ids) {
            if let Some(logit) = row.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    logits
}

/// Applies `f` to one finite logit; ids beyond the row and excluded tokens are left alone.
fn change(row: &mut [f32], id: u32, f: impl FnOnce(f32) -> f32) {
    if let Some(logit) = row.get_mut(id as usize)
        && logit.is_finite()
    {
        *logit = f(*logit).clamp(f32::MIN, f32::MAX);
    }
}

/// Calls `f` once for every id below `width` that occurs in either list.
fn for_each_distinct(width: usize, a: &[u32], b: &[u32], mut f: impl FnMut(u32)) {
    let mut seen = vec![0u64; width.div_ceil(64)];
    for &id in a.iter().chain(b) {
        let Some(word) = seen.get_mut(id as usize / 64) else {
            continue;
        };
        let bit = 1 << (id % 64);
        if *word & bit == 0 {
            *word |= bit;
            f(id);
        }
    }
}

/// A neutral setting is written as exactly that number (or minus zero).
fn differs(value: f32, neutral: f32) -> bool {
    (value - neutral).abs() > 0.0
}
