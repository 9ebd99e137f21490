//! Rotary position embedding: frequencies with their scalings, and the rotation of a head.
//!
//! Everything up to the final rounding is plain f64 arithmetic without library functions, so that
//! two machines with different mathematics libraries compute the same bits. It must not know where
//! the rotated values go.
#![allow(unsafe_code)] // Vector loads and stores on heads and tables whose length is asserted.

use baton_model_file::{Rope, RopePairing, RopeScaling};

use super::{
    lanes::{LANES, Lanes, lanes_kernel},
    mathematics::{exp, ln, sin_cos},
};
use crate::Isa;

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

    /// Values of a table that [`Self::fill`] writes: at most twice the rotated dimensions.
    pub(crate) fn table_len(&self) -> usize {
        match self.pairing {
            RopePairing::HalfSplit => 2 * self.pairs(),
            RopePairing::Interleaved => 4 * self.pairs(),
        }
    }

    /// Writes the table of `position`, [`Self::table_len`] values: cosines, then sines; for
    /// neighbouring pairs those of each dimension, the sine of the even ones negated.
    pub(crate) fn fill(&self, position: u32, table: &mut [f32]) {
        let (cosines, sines) = table.split_at_mut(self.table_len() / 2);
        for (pair, frequency) in self.frequencies.iter().enumerate() {
            let (s, c) = sin_cos(f64::from(position) * frequency);
            let (s, c) = ((s * self.magnitude) as f32, (c * self.magnitude) as f32);
            match self.pairing {
                RopePairing::HalfSplit => (cosines[pair], sines[pair]) = (c, s),
                RopePairing::Interleaved => {
                    cosines[2 * pair..][..2].copy_from_slice(&[c, c]);
                    sines[2 * pair..][..2].copy_from_slice(&[-s, s]);
                }
            }
        }
    }

    /// Rotates the first `2 * pairs()` values of each head of `width` values by a table that
    /// [`Self::fill`] wrote, and multiplies all of them by `scale`.
    pub(crate) fn rotate(
        &self,
        isa: Isa,
        table: &[f32],
        heads: &mut [f32],
        width: usize,
        scale: f32,
    ) {
        assert!(table.len() == self.table_len() && 2 * self.pairs() <= width);
        let (cosines, sines) = table.split_at(table.len() / 2);
        // SAFETY: a head has the values that rotate; the instruction set was checked at construction.
        unsafe {
            match self.pairing {
                RopePairing::HalfSplit => {
                    rotate_all_halves(isa, heads, width, cosines, sines, scale);
                }
                RopePairing::Interleaved => {
                    rotate_all_neighbours(isa, heads, width, cosines, sines, scale);
                }
            }
        }
    }
}

lanes_kernel! {
    unsafe fn rotate_all_neighbours(
        heads: &mut [f32], width: usize, cosines: &[f32], sines: &[f32], scale: f32,
    ) = all_neighbours
}
lanes_kernel! {
    unsafe fn rotate_all_halves(
        heads: &mut [f32], width: usize, cosines: &[f32], sines: &[f32], scale: f32,
    ) = all_halves
}

/// # Safety
/// `cosines` and `sines` are equally long, and not longer than a head of `width`.
#[inline(always)]
unsafe fn all_neighbours<V: Lanes>(
    heads: &mut [f32],
    width: usize,
    cosines: &[f32],
    sines: &[f32],
    scale: f32,
) {
    for head in heads.chunks_exact_mut(width) {
        let (rotated, rest) = head.split_at_mut(cosines.len());
        // SAFETY: by the contract.
        unsafe { rotate_neighbours::<V>(rotated, cosines, sines, scale) };
        for value in rest {
            *value *= scale;
        }
    }
}

/// # Safety
/// `cosines` and `sines` are equally long, and together not longer than a head of `width`.
#[inline(always)]
unsafe fn all_halves<V: Lanes>(
    heads: &mut [f32],
    width: usize,
    cosines: &[f32],
    sines: &[f32],
    scale: f32,
) {
    for head in heads.chunks_exact_mut(width) {
        let (rotated, rest) = head.split_at_mut(2 * cosines.len());
        // SAFETY: by the contract.
        unsafe { rotate_halves::<V>(rotated, cosines, sines, scale) };
        for value in rest {
            *value *= scale;
        }
    }
}

/// # Safety
/// All slices are equally long.
#[inline(always)]
unsafe fn rotate_neighbours<V: Lanes>(
    head: &mut [f32],
    cosines: &[f32],
    sines: &[f32],
    scale: f32,
) {
    let whole = head.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: `at + LANES` is within all slices.
        unsafe {
            let value = V::load(head.as_ptr().add(at));
            let cosine = V::load(cosines.as_ptr().add(at));
            let sine = V::load(sines.as_ptr().add(at));
            let turned = value.mul(cosine).add(value.swap_pairs().mul(sine));
            turned.mul(V::splat(scale)).store(head.as_mut_ptr().add(at));
        }
    }
    for at in (whole..head.len()).step_by(2) {
        let (a, b) = (head[at], head[at + 1]);
        head[at] = (a * cosines[at] + b * sines[at]) * scale;
        head[at + 1] = (b * cosines[at + 1] + a * sines[at + 1]) * scale;
    }
}

/// # Safety
/// `head` is twice as long as the other slices.
#[inline(always)]
unsafe fn rotate_halves<V: Lanes>(head: &mut [f32], cosines: &[f32], sines: &[f32], scale: f32) {
    let (first, second) = head.split_at_mut(cosines.len());
    let whole = first.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: `at + LANES` is within all slices.
        unsafe {
            let a = V::load(first.as_ptr().add(at));
            let b = V::load(second.as_ptr().add(at));
            let cosine = V::load(cosines.as_ptr().add(at));
            let sine = V::load(sines.as_ptr().add(at));
            let (scale, turned) = (V::splat(scale), b.mul(cosine).add(a.mul(sine)));
            let straight = a.mul(cosine).sub(b.mul(sine));
            straight.mul(scale).store(first.as_mut_ptr().add(at));
            turned.mul(scale).store(second.as_mut_ptr().add(at));
        }
    }
    for at in whole..first.len() {
        let (a, b, c, s) = (first[at], second[at], cosines[at], sines[at]);
        first[at] = (a * c - b * s) * scale;
        second[at] = (b * c + a * s) * scale;
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
    let RopeScaling::Yarn {
        factor,
        attention_factor,
        attention_multiplier,
        ..
    } = scaling
    else {
        return 1.0;
    };
    let factor = match attention_factor {
        Some(stated) => f64::from(*stated),
        None if *factor > 1.0 => 0.1 * ln(f64::from(*factor)) + 1.0,
        None => 1.0,
    };
    factor * f64::from(*attention_multiplier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_model_file::fixtures::Random;

    /// `[a, b]` of each pair turned by its angle, in plain f64.
    fn plain(rope: &Rope, position: u32, head: &[f32]) -> Vec<f64> {
        let mut out: Vec<f64> = head.iter().map(|x| f64::from(*x)).collect();
        let pairs = rope.dimensions as usize / 2;
        for pair in 0..pairs {
            let angle = f64::from(position)
                * f64::from(rope.theta).powf(-2.0 * pair as f64 / f64::from(rope.dimensions));
            let (i, j) = match rope.pairing {
                RopePairing::Interleaved => (2 * pair, 2 * pair + 1),
                RopePairing::HalfSplit => (pair, pair + pairs),
            };
            let (a, b) = (f64::from(head[i]), f64::from(head[j]));
            out[i] = a * angle.cos() - b * angle.sin();
            out[j] = b * angle.cos() + a * angle.sin();
        }
        out
    }

    #[test]
    fn heads_of_any_width_turn_the_same_on_all_instruction_sets() {
        let mut random = Random::new(0x0907);
        for pairing in [RopePairing::Interleaved, RopePairing::HalfSplit] {
            for (width, dimensions) in [(64, 64), (128, 128), (24, 24), (80, 80), (6, 2), (40, 32)]
            {
                let rope = Rope {
                    theta: 10_000.0,
                    dimensions,
                    pairing,
                    scaling: RopeScaling::None,
                };
                let rotations = Rotations::new(&rope);
                let mut table = vec![0.0; rotations.table_len()];
                let position = random.below(2_000) as u32;
                rotations.fill(position, &mut table);
                let heads: Vec<f32> = (0..3 * width)
                    .map(|_| random.below(2_000) as f32 / 500.0 - 2.0)
                    .collect();
                let turn = |isa| {
                    let mut turned = heads.clone();
                    rotations.rotate(isa, &table, &mut turned, width, 0.3);
                    turned
                };
                let portable = turn(Isa::Portable);
                for &isa in Isa::available() {
                    assert_eq!(turn(isa), portable, "{isa:?} {pairing:?} {width}");
                }
                for (ours, head) in portable.chunks(width).zip(heads.chunks(width)) {
                    for (ours, theirs) in ours.iter().zip(plain(&rope, position, head)) {
                        let error = (f64::from(*ours) - 0.3 * theirs).abs();
                        assert!(error < 1e-6, "{pairing:?} {width} at {position}: {error}");
                    }
                }
            }
        }
    }
}
