//! The sampler by case id: draws, penalties, log-probabilities. Not its parts.

use std::collections::{BTreeMap, BTreeSet};

use super::{input, params, row};
use crate::{
    LOGPROB_FLOOR, ParamError, SampleError, SampleInput, SamplingParams, TokenLogprobs, sample,
};

const VOCABULARY: u32 = 49_152;

fn refused(params: SamplingParams) -> (&'static str, String) {
    match params.validate(VOCABULARY) {
        Ok(params) => panic!("accepted: {params:?}"),
        Err(ParamError::OutOfRange { field, value, .. }) => (field, value),
    }
}

#[test]
fn smp_01_a_draw_depends_on_seed_choice_and_position_alone() {
    let logits = row(1, 5_000);
    let a = params(0.8, 42);
    let run = |noise: bool| -> Vec<u32> {
        let mut completion = Vec::new();
        for step in 0..16 {
            if noise {
                // A neighbour samples in between, with another seed.
                let other = row(step, 5_000);
                sample(&params(1.5, step * 31), &input(&other)).unwrap();
            }
            let mut at = input(&logits);
            at.completion = &completion;
            let token = sample(&a, &at).unwrap().token_id;
            completion.push(token);
        }
        completion
    };
    let alone = run(false);
    assert_eq!(alone, run(true));
    // Only the number of completion tokens counts, not which they are, and not the prompt.
    let replaced = vec![3; 7];
    let at = SampleInput {
        prompt: &[1, 2, 3],
        completion: &replaced,
        ..input(&logits)
    };
    assert_eq!(sample(&a, &at).unwrap().token_id, alone[7]);
    assert!(alone.iter().collect::<BTreeSet<_>>().len() > 8);
}

#[test]
fn smp_02_choices_draw_independently() {
    let logits = row(2, 1_000);
    let pick = |choice| {
        let at = SampleInput {
            choice,
            ..input(&logits)
        };
        sample(&params(1.0, 7), &at).unwrap().token_id
    };
    let four: BTreeSet<u32> = (0..4).map(pick).collect();
    assert!(four.len() > 1);
    assert_eq!((0..4).map(pick).collect::<BTreeSet<_>>(), four);
}

#[test]
fn smp_03_logprobs_range() {
    for asked in [21, 49_153, 1_000_000, u32::MAX] {
        let (field, value) = refused(SamplingParams {
            logprobs: Some(asked),
            ..SamplingParams::default()
        });
        assert_eq!((field, value), ("logprobs", asked.to_string()));
    }
    for asked in [0, 20] {
        let accepted = SamplingParams {
            logprobs: Some(asked),
            ..SamplingParams::default()
        };
        assert!(accepted.validate(VOCABULARY).is_ok());
    }
    // More than the vocabulary holds: all of it.
    let mut all = params(1.0, 1);
    all.logprobs = Some(20);
    let top = sample(&all, &input(&[0.0, 1.0])).unwrap().logprobs.unwrap();
    assert_eq!(top.top.len(), 2);
}

#[test]
fn smp_05_values_out_of_range_are_refused_by_name() {
    let ok = SamplingParams::default;
    let nan = f32::NAN;
    let cases: Vec<(&str, SamplingParams)> = vec![
        (
            "temperature",
            SamplingParams {
                temperature: nan,
                ..ok()
            },
        ),
        (
            "temperature",
            SamplingParams {
                temperature: -0.1,
                ..ok()
            },
        ),
        (
            "temperature",
            SamplingParams {
                temperature: f32::INFINITY,
                ..ok()
            },
        ),
        ("top_p", SamplingParams { top_p: nan, ..ok() }),
        ("min_p", SamplingParams { min_p: nan, ..ok() }),
        ("min_p", SamplingParams { min_p: 1.1, ..ok() }),
        ("n", SamplingParams { choices: 0, ..ok() }),
        (
            "n",
            SamplingParams {
                choices: 17,
                ..ok()
            },
        ),
        (
            "max_tokens",
            SamplingParams {
                max_tokens: 0,
                ..ok()
            },
        ),
        (
            "max_tokens",
            SamplingParams {
                max_tokens: u32::MAX,
                ..ok()
            },
        ),
        (
            "min_tokens",
            SamplingParams {
                min_tokens: 129,
                ..ok()
            },
        ),
        (
            "presence_penalty",
            SamplingParams {
                presence_penalty: 99.0,
                ..ok()
            },
        ),
        (
            "frequency_penalty",
            SamplingParams {
                frequency_penalty: -2.1,
                ..ok()
            },
        ),
        (
            "repetition_penalty",
            SamplingParams {
                repetition_penalty: 0.0,
                ..ok()
            },
        ),
        (
            "repetition_penalty",
            SamplingParams {
                repetition_penalty: f32::NEG_INFINITY,
                ..ok()
            },
        ),
        (
            "stop_token_ids",
            SamplingParams {
                stop_token_ids: vec![VOCABULARY],
                ..ok()
            },
        ),
        (
            "stop_token_ids",
            SamplingParams {
                stop_token_ids: vec![0; 65],
                ..ok()
            },
        ),
    ];
    for (name, params) in cases {
        assert_eq!(refused(params).0, name);
    }
    let message = SamplingParams {
        presence_penalty: 99.0,
        ..ok()
    }
    .validate(VOCABULARY)
    .unwrap_err()
    .to_string();
    assert_eq!(message, "presence_penalty is 99, allowed: -2 to 2");
    assert_eq!(ok().validate(VOCABULARY), Ok(ok()));
}

#[test]
fn smp_06_logit_bias() {
    let biased = |entries: Vec<(u32, f32)>| SamplingParams {
        logit_bias: entries.into_iter().collect::<BTreeMap<_, _>>(),
        ..SamplingParams::default()
    };
    assert_eq!(
        refused(biased(vec![(191_222, -100.0)])),
        ("logit_bias", "token id 191222".into())
    );
    assert_eq!(refused(biased(vec![(1, 100.5)])).0, "logit_bias");
    assert_eq!(refused(biased(vec![(1, f32::NAN)])).0, "logit_bias");
    let many = (0..301).map(|id| (id, 1.0)).collect();
    assert_eq!(refused(biased(many)).1, "a list of 301");

    let edge = biased(vec![(VOCABULARY - 1, 100.0)])
        .validate(VOCABULARY)
        .unwrap();
    let logits = row(6, VOCABULARY as usize);
    assert_eq!(
        sample(&edge, &input(&logits)).unwrap().token_id,
        VOCABULARY - 1
    );

    // Every token of a small vocabulary at -100: a shift, not a ban.
    let logits = row(6, 300);
    let all = biased((0..300).map(|id| (id, -100.0)).collect())
        .validate(300)
        .unwrap();
    let plain = sample(&params(0.0, 0), &input(&logits)).unwrap();
    assert_eq!(sample(&all, &input(&logits)).unwrap(), plain);
    // Truly nothing left is an error, not a panic. A short row never writes out of range.
    let mut hidden = params(0.7, 3);
    hidden.min_tokens = 1;
    hidden.stop_token_ids = vec![0, 1, 900];
    assert_eq!(
        sample(&hidden, &input(&[0.5, 0.25])),
        Err(SampleError::NothingLeft { position: 0 })
    );
    assert_eq!(sample(&edge, &input(&[0.5, 0.75])).unwrap().token_id, 1);
}

#[test]
fn smp_07_temperature_edges() {
    let logits = row(7, 2_000);
    let at = |temperature: f32| {
        let params = params(temperature, 11).validate(VOCABULARY).unwrap();
        sample(&params, &input(&logits)).unwrap().token_id
    };
    let greedy = at(0.0);
    for tiny in [1e-45, 1e-8, 1e-5, 9.9e-5, 1e-4] {
        assert_eq!(at(tiny), greedy, "temperature {tiny}");
    }
    assert!((at(0.001) as usize) < logits.len());
    assert!((at(2.0) as usize) < logits.len());
    assert_eq!(refused(params(1e6, 1)), ("temperature", "1000000".into()));
    // Extreme logits at an extreme temperature: no overflow, no NaN.
    let extreme = [f32::MIN, f32::MAX, 0.0, f32::NEG_INFINITY];
    for temperature in [1e-4, 1.0, 10.0] {
        assert_eq!(
            sample(&params(temperature, 5), &input(&extreme))
                .unwrap()
                .token_id,
            1
        );
    }
    assert_eq!(
        sample(&params(1.0, 5), &input(&[0.0, f32::NAN])),
        Err(SampleError::NotFinite { position: 0 })
    );
}

#[test]
fn smp_08_top_p_and_min_p_edges() {
    let logits = row(8, 3_000);
    let best = sample(&params(0.0, 0), &input(&logits)).unwrap().token_id;
    for seed in 0..50 {
        for temperature in [0.7, 2.0] {
            let base = params(temperature, seed);
            for filtered in [
                SamplingParams {
                    top_p: 1e-9,
                    ..base.clone()
                },
                SamplingParams {
                    top_p: f32::from_bits(1),
                    ..base.clone()
                },
                SamplingParams {
                    top_p: 0.0001,
                    ..base.clone()
                },
                SamplingParams {
                    min_p: 1.0,
                    ..base.clone()
                },
                SamplingParams {
                    top_k: 1,
                    ..base.clone()
                },
                SamplingParams {
                    top_k: 1,
                    min_p: 1.0,
                    top_p: 1e-9,
                    ..base.clone()
                },
            ] {
                let filtered = filtered.validate(VOCABULARY).unwrap();
                assert_eq!(sample(&filtered, &input(&logits)).unwrap().token_id, best);
            }
            // No filter at all is the same as filters that keep everything.
            let open = SamplingParams {
                top_k: 3_000,
                ..base.clone()
            };
            assert_eq!(
                sample(&open, &input(&logits)),
                sample(&base, &input(&logits))
            );
        }
    }
    for top_p in [0.0, 1.000_000_1, -0.1, f32::NAN] {
        assert_eq!(
            refused(SamplingParams {
                top_p,
                ..params(1.0, 1)
            })
            .0,
            "top_p"
        );
    }
    // Exact ties: the lowest ids stay.
    let ties = vec![1.0; 1_000];
    for seed in 0..200 {
        let two = SamplingParams {
            top_k: 2,
            ..params(1.0, seed)
        };
        assert!(sample(&two, &input(&ties)).unwrap().token_id < 2);
        let half = SamplingParams {
            top_p: 0.5,
            ..params(1.0, seed)
        };
        assert!(sample(&half, &input(&ties)).unwrap().token_id < 500);
        let equal = SamplingParams {
            min_p: 1.0,
            ..params(1.0, seed)
        };
        assert!(sample(&equal, &input(&ties)).unwrap().token_id < 1_000);
    }
    assert_eq!(sample(&params(0.0, 0), &input(&ties)).unwrap().token_id, 0);
    assert_eq!(
        sample(&params(0.0, 0), &input(&[-1.0, -0.0, 0.0]))
            .unwrap()
            .token_id,
        1
    );
}

#[test]
fn smp_10_logprobs_are_finite_and_of_the_model() {
    let logits = row(10, 500);
    let narrow = SamplingParams {
        top_k: 1,
        logprobs: Some(5),
        ..params(1.0, 3)
    };
    let TokenLogprobs { chosen, top } = sample(&narrow, &input(&logits)).unwrap().logprobs.unwrap();
    assert_eq!(top.len(), 5);
    assert!(chosen <= 0.0 && chosen.to_bits() == top[0].1.to_bits());
    assert!(
        top.iter()
            .all(|(_, logprob)| logprob.is_finite() && *logprob <= 0.0)
    );
    assert!(top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let exact: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    assert!((f64::from(chosen) + exact.ln()).abs() < 1e-5);

    let gone = SamplingParams {
        logprobs: Some(3),
        ..params(1.0, 3)
    };
    let floor = sample(&gone, &input(&[f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY])).unwrap();
    assert_eq!(
        floor.logprobs.unwrap().top,
        vec![(1, 0.0), (0, LOGPROB_FLOOR), (2, LOGPROB_FLOOR)]
    );
}

#[test]
fn smp_14_max_tokens_zero_is_refused() {
    assert_eq!(
        refused(SamplingParams {
            max_tokens: 0,
            ..SamplingParams::default()
        })
        .0,
        "max_tokens"
    );
    let one = SamplingParams {
        max_tokens: 1,
        ..SamplingParams::default()
    };
    assert!(one.validate(VOCABULARY).is_ok());
}

#[test]
fn penalties_and_minimum_length() {
    let logits = [2.0, 1.9, -1.0, 0.0];
    let pick = |params: SamplingParams, prompt: &[u32], completion: &[u32]| {
        let at = SampleInput {
            prompt,
            completion,
            eos_ids: &[0],
            ..input(&logits)
        };
        sample(&params, &at).unwrap().token_id
    };
    let greedy = || params(0.0, 0);
    assert_eq!(pick(greedy(), &[], &[]), 0);
    assert_eq!(
        pick(
            SamplingParams {
                repetition_penalty: 1.2,
                ..greedy()
            },
            &[0],
            &[]
        ),
        1
    );
    assert_eq!(
        pick(
            SamplingParams {
                repetition_penalty: 1.2,
                ..greedy()
            },
            &[0],
            &[1]
        ),
        0
    );
    assert_eq!(
        pick(
            SamplingParams {
                presence_penalty: 0.2,
                ..greedy()
            },
            &[0],
            &[]
        ),
        0
    );
    assert_eq!(
        pick(
            SamplingParams {
                presence_penalty: 0.2,
                ..greedy()
            },
            &[],
            &[0, 0]
        ),
        1
    );
    assert_eq!(
        pick(
            SamplingParams {
                frequency_penalty: 0.06,
                ..greedy()
            },
            &[],
            &[0]
        ),
        0
    );
    assert_eq!(
        pick(
            SamplingParams {
                frequency_penalty: 0.06,
                ..greedy()
            },
            &[],
            &[0, 0]
        ),
        1
    );
    assert_eq!(
        pick(
            SamplingParams {
                min_tokens: 2,
                ..greedy()
            },
            &[],
            &[3]
        ),
        1
    );
    assert_eq!(
        pick(
            SamplingParams {
                min_tokens: 2,
                ..greedy()
            },
            &[],
            &[3, 3]
        ),
        0
    );
    let stop = SamplingParams {
        min_tokens: 1,
        stop_token_ids: vec![1],
        ..greedy()
    };
    assert_eq!(pick(stop, &[], &[]), 3);
}
