//! Tests by case id, against naive oracles, and of the parts.

mod cases;
mod oracle;
mod parts;

use crate::{SampleInput, SamplingParams};

/// A row of pseudo-random logits, roughly normal, as models give them.
fn row(seed: u64, width: usize) -> Vec<f32> {
    (0..width as u32)
        .map(|i| {
            let words = crate::philox::philox4x32([seed as u32, 77], [i, 0, 0, 0]);
            let total: f64 = words.iter().map(|&w| f64::from(w) / 4_294_967_296.0).sum();
            ((total - 2.0) * 6.0) as f32
        })
        .collect()
}

fn input(logits: &[f32]) -> SampleInput<'_> {
    SampleInput {
        logits,
        prompt: &[],
        completion: &[],
        choice: 0,
        eos_ids: &[],
    }
}

fn params(temperature: f32, seed: u64) -> SamplingParams {
    SamplingParams {
        temperature,
        seed,
        ..SamplingParams::default()
    }
}
