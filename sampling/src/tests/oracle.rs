//! The sampler against a slow, obvious one that sorts the whole row in f64.

use proptest::prelude::*;

use super::{input, params};
use crate::scan::Scan;
use crate::{SamplingParams, sample};

/// Tokens that may be drawn, or `None` where a filter's edge is within rounding.
fn allowed(logits: &[f32], params: &SamplingParams) -> Option<Vec<u32>> {
    let mut ranked: Vec<u32> = (0..logits.len() as u32).collect();
    ranked.sort_by(|&a, &b| {
        logits[b as usize]
            .total_cmp(&logits[a as usize])
            .then(a.cmp(&b))
    });
    let max = f64::from(logits[ranked[0] as usize]);
    let weight =
        |id: u32| ((f64::from(logits[id as usize]) - max) / f64::from(params.temperature)).exp();
    if params.top_k > 0 {
        ranked.truncate(params.top_k as usize);
    }
    let min_p = f64::from(params.min_p);
    if ranked
        .iter()
        .any(|&id| (weight(id) / min_p - 1.0).abs() < 1e-5)
        && min_p < 1.0
    {
        return None;
    }
    ranked.retain(|&id| weight(id) >= min_p);
    if params.top_p < 1.0 {
        let target = f64::from(params.top_p) * ranked.iter().map(|&id| weight(id)).sum::<f64>();
        let mut mass = 0.0;
        let mut kept = 0;
        for &id in &ranked {
            mass += weight(id);
            kept += 1;
            if (mass / target - 1.0).abs() < 1e-5 {
                return None;
            }
            if mass >= target {
                break;
            }
        }
        ranked.truncate(kept);
    }
    Some(ranked)
}

proptest! {
    #[test]
    fn a_draw_is_among_the_tokens_that_the_filters_leave(
        logits in prop::collection::vec(prop_oneof![-30.0f32..30.0, Just(1.5f32)], 1..600),
        temperature in 0.05f32..10.0,
        top_k in prop_oneof![Just(0u32), 1u32..700],
        top_p in prop_oneof![Just(1.0f32), 0.001f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..=1.0],
        seed: u64,
    ) {
        let params = SamplingParams { top_p, top_k, min_p, ..params(temperature, seed) };
        let params = params.validate(600).unwrap();
        if let Some(allowed) = allowed(&logits, &params) {
            let token = sample(&params, &input(&logits)).unwrap().token_id;
            prop_assert!(allowed.contains(&token), "{token} not in {allowed:?}");
        }
    }

    #[test]
    fn the_largest_are_those_of_a_full_sort(
        values in prop::collection::vec(prop_oneof![-3i8..3, Just(0i8)], 0..900),
        k in 0usize..1000,
    ) {
        let values: Vec<f32> = values.into_iter().map(f32::from).collect();
        let mut sorted: Vec<u32> = (0..values.len() as u32).collect();
        sorted.sort_by(|&a, &b| {
            values[b as usize].partial_cmp(&values[a as usize]).unwrap().then(a.cmp(&b))
        });
        sorted.truncate(k);
        prop_assert_eq!(Scan::of(&values).largest(k), sorted);
    }

    #[test]
    fn any_finite_logits_and_valid_parameters_give_a_token(
        logits in prop::collection::vec(any::<f32>().prop_filter("finite", |v| v.is_finite()), 1..300),
        temperature in 0.0f32..=10.0,
        repetition_penalty in 0.01f32..=10.0,
        presence_penalty in -2.0f32..=2.0,
        frequency_penalty in -2.0f32..=2.0,
        bias in prop::collection::btree_map(0u32..300, -100.0f32..=100.0, 0..20),
        completion in prop::collection::vec(0u32..400, 0..50),
        logprobs in 0u32..=20,
        seed: u64,
    ) {
        let params = SamplingParams {
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias: bias,
            logprobs: Some(logprobs),
            ..params(temperature, seed)
        };
        let params = params.validate(300).unwrap();
        let mut at = input(&logits);
        at.completion = &completion;
        at.prompt = &completion;
        let sampled = sample(&params, &at).unwrap();
        prop_assert!((sampled.token_id as usize) < logits.len());
        let logprobs = sampled.logprobs.unwrap();
        prop_assert!(logprobs.chosen.is_finite() && logprobs.chosen <= 0.0);
        prop_assert!(logprobs.top.iter().all(|(_, l)| l.is_finite() && *l <= 0.0));
        prop_assert_eq!(sample(&params, &at).unwrap().token_id, sampled.token_id);
    }
}

/// Frequencies over many positions follow the softmax.
#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = [0.0, 1.0, 2.0, -1.0].to_vec();
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let mut counts = [0u32; 4];
    let mut completion = Vec::new();
    for _ in 0..20_000 {
        let mut at = input(&logits);
        at.completion = &completion;
        counts[sample(&params(1.0, 1234), &at).unwrap().token_id as usize] += 1;
        completion.push(0);
    }
    for (count, &logit) in counts.iter().zip(&logits) {
        let expected = f64::from(logit).exp() / total;
        let got = f64::from(*count) / 20_000.0;
        assert!((got - expected).abs() < 0.012, "{got} for {expected}");
    }
}
