//! Rotary position embedding: frequencies with their scalings, and the rotation of a head.
//!
//! Everything up to the final rounding is plain f64 arithmetic without library functions, so that
//! two machines with different mathematics libraries compute the same bits. It must not know where
//! the rotated values go.

use baton_model_file::{Rope, RopePairing, RopeScaling};

use super::mathematics::{exp, ln, sin_cos};

/// Rotations of a model: one frequency per pair of dimensions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rotations {
    /// Radians per position.
    frequencies: Vec<f64>,
    /// Multiplier of cosine and sine (`YaRN`'s attention factor).
    magnitude: f64,
    pairing: RopePairing,
}

impl Rotations {
    /// The rotations of `rope`; `rope.dimensions` is even.
    pub(crate) fn new(rope: &Rope) -> Self {
        let (scaling, dimensions) = (&rope.scaling, rope.dimensions as usize);
        let log_theta = ln(f64::from(rope.theta));
        let plain = (0..dimensions / 2)
            .map(|pair| exp(-(2.0 * pair as f64 / dimensions as f64) * log_theta));
        let frequencies = match scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / f64::from(*factor)).collect(),
            RopeScaling::Factors(factors) => plain
                .zip(factors)
                .map(|(f, factor)| f / f64::from(*factor))
                .collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let band = (f64::from(*low_freq_factor), f64::from(*high_freq_factor));
                plain
                    .map(|f| llama3(f, f64::from(*factor), band, f64::from(*original_context)))
                    .collect()
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                ..
            } => {
                let pair_of = |rotations: f32| {
                    let context = f64::from(*original_context);
                    let turns = f64::from(rotations) * std::f64::consts::TAU;
                    dimensions as f64 * ln(context / turns) / (2.0 * log_theta)
                };
                let low = pair_of(*beta_fast).floor().max(0.0);
                let high = pair_of(*beta_slow).ceil().min(dimensions as f64 - 1.0);
                yarn(plain, f64::from(*factor), low, high)
            }
        };
        Self {
            frequencies,
            magnitude: magnitude(scaling),
            pairing: rope.pairing,
        }
    }

    /// Pairs of dimensions that rotate.
    pub(crate) fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Writes cosines, then sines, of all pairs at `position`; `table` holds `2 * pairs()` values.
    pub(crate) fn fill(&self, position: u32, table: &mut [f32]) {
        let (cosines, sines) = table.split_at_mut(self.pairs());
        for ((frequency, cosine), sine) in self.frequencies.iter().zip(cosines).zip(sines) {
            let (s, c) = sin_cos(f64::from(position) * frequency);
            *cosine = (c * self.magnitude) as f32;
            *sine = (s * self.magnitude) as f32;
        }
    }

    /// Rotates the first `2 * pairs()` values of `head` by a table that [`Self::fill`] wrote.
    pub(crate) fn rotate(&self, table: &[f32], head: &mut [f32]) {
        let (cosines, sines) = table.split_at(self.pairs());
        let turns = cosines.iter().zip(sines);
        match self.pairing {
            RopePairing::Interleaved => {
                for (pair, (c, s)) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                    let [a, b] = *pair;
                    *pair = [a * c - b * s, a * s + b * c];
                }
            }
            RopePairing::HalfSplit => {
                let (first, second) = head.split_at_mut(self.pairs());
                for ((a, b), (c, s)) in first.iter_mut().zip(second).zip(turns) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
        }
    }
}

/// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, the band between blended.
fn llama3(frequency: f64, factor: f64, (low, high): (f64, f64), context: f64) -> f64 {
    let rotations = context * frequency / std::f64::consts::TAU;
    if rotations > high {
        frequency
    } else if rotations < low {
        frequency / factor
    } else {
        let kept = (rotations - low) / (high - low);
        (1.0 - kept) * frequency / factor + kept * frequency
    }
}

/// `YaRN` (arXiv 2309.00071, section 3.2): a ramp over the pairs from kept to interpolated.
fn yarn(plain: impl Iterator<Item = f64>, factor: f64, low: f64, high: f64) -> Vec<f64> {
    // The paper's reference code widens an empty ramp by the same amount.
    let width = if high > low { high - low } else { 0.001 };
    plain
        .enumerate()
        .map(|(pair, frequency)| {
            let interpolated = ((pair as f64 - low) / width).clamp(0.0, 1.0);
            frequency / factor * interpolated + frequency * (1.0 - interpolated)
        })
        .collect()
}

fn magnitude(scaling: &RopeScaling) -> f64 {
    match scaling {
        RopeScaling::Yarn {
            attention_factor: Some(factor),
            ..
        } => f64::from(*factor),
        RopeScaling::Yarn { factor, .. } if *factor > 1.0 => 0.1 * ln(f64::from(*factor)) + 1.0,
        _ => 1.0,
    }
}
