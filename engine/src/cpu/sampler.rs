//! The sampler, compiled once for each instruction set.
//!
//! It has no arithmetic of its own: results are the bits of `baton_sampling::sample`. It must not know
//! of batches.
#![allow(unsafe_code)] // Calls functions whose instructions were checked at construction.

use baton_sampling::{
    PlainSampler, SampleError, SampleInput, Sampled, Sampler, SamplingParams, TokenLogprobs,
};

use crate::Isa;

/// The sampler for an instruction set that this machine has.
pub(super) fn sampler(isa: Isa) -> &'static dyn Sampler {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => &wide::Avx2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => &wide::Avx512,
        _ => &PlainSampler,
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{SampleError, SampleInput, Sampled, Sampler, SamplingParams, TokenLogprobs};

    macro_rules! sampler {
        ($name:ident, $features:literal) => {
            #[derive(Debug)]
            pub(super) struct $name;

            impl Sampler for $name {
                fn sample(
                    &self,
                    params: &SamplingParams,
                    input: &SampleInput<'_>,
                ) -> Result<Sampled, SampleError> {
                    #[target_feature(enable = $features)]
                    fn run(
                        params: &SamplingParams,
                        input: &SampleInput<'_>,
                    ) -> Result<Sampled, SampleError> {
                        baton_sampling::sample(params, input)
                    }
                    // SAFETY: only an engine of this instruction set, checked at its construction,
                    // hands this sampler out.
                    unsafe { run(params, input) }
                }

                fn log_probabilities(
                    &self,
                    logits: &[f32],
                    token: u32,
                    count: u32,
                ) -> Option<TokenLogprobs> {
                    #[target_feature(enable = $features)]
                    fn run(logits: &[f32], token: u32, count: u32) -> Option<TokenLogprobs> {
                        baton_sampling::log_probabilities(logits, token, count)
                    }
                    // SAFETY: as above.
                    unsafe { run(logits, token, count) }
                }
            }
        };
    }

    sampler!(Avx2, "avx2");
    sampler!(Avx512, "avx512f,avx512bw,avx512vl,avx512dq");
}

#[cfg(test)]
mod tests {
    use baton_model_file::fixtures::Random;

    use super::*;

    fn row(random: &mut Random, width: usize) -> Vec<f32> {
        // Steps of a quarter, so that ties are many.
        let mut value = || (random.below(97) as f32 - 70.0) * 0.25;
        (0..width).map(|_| value()).collect()
    }

    /// Every way of sampling, on rows whose width is no multiple of anything.
    #[test]
    fn every_instruction_set_chooses_the_same_tokens_with_the_same_bits() {
        let mut random = Random::new(0x5a3);
        for width in [1, 15, 17, 255, 1023, 1025, 5_003] {
            let logits = row(&mut random, width);
            for (temperature, top_k, top_p, min_p) in [
                (0.0, 0, 1.0, 0.0),
                (0.7, 0, 1.0, 0.0),
                (1.3, 40, 1.0, 0.0),
                (1.0, 0, 0.9, 0.0),
                (9.0, 0, 0.999, 0.0),
                (1.0, 0, 0.8, 0.01),
                (1.0, 100, 0.7, 0.0),
            ] {
                let params = SamplingParams {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    logprobs: Some(7),
                    ..SamplingParams::default()
                };
                for seed in 0..20 {
                    let params = SamplingParams {
                        seed,
                        ..params.clone()
                    };
                    let input = SampleInput {
                        logits: &logits,
                        prompt: &[1],
                        completion: &[2, 3],
                        choice: 1,
                        eos_ids: &[0],
                    };
                    let expected = baton_sampling::sample(&params, &input);
                    assert!(expected.is_ok());
                    for &isa in Isa::available() {
                        let sampler = sampler(isa);
                        let what = format!("{isa:?}, {width} logits, {params:?}");
                        assert_eq!(sampler.sample(&params, &input), expected, "{what}");
                        let token = random.below(width) as u32;
                        assert_eq!(
                            sampler.log_probabilities(&logits, token, 5),
                            baton_sampling::log_probabilities(&logits, token, 5),
                            "{what}"
                        );
                    }
                }
            }
        }
    }
}
