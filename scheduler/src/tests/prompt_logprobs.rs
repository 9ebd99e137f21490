//! Log-probabilities of prompts: each once, in order, before the first token, whatever happens.

use super::oracle::POISON;
use super::rig::{Rig, config, params, prompt, sampled, spec};
use crate::{AfterPrompt, SequenceError, SequenceId};
use baton_sampling::SamplingParams;

fn asking(max_tokens: u32, seed: u64) -> SamplingParams {
    SamplingParams {
        prompt_logprobs: Some(4),
        ..sampled(max_tokens, seed)
    }
}

fn told(rig: &Rig, id: SequenceId) -> usize {
    rig.heard[&id].prompt.len()
}

#[test]
fn chunks_are_bounded_by_rows_and_change_nothing() {
    for rows in [1, 3, 24, 1000] {
        let mut rig = Rig::new(config(200, 16));
        rig.scheduler.config.max_prompt_rows = rows;
        let texts = [prompt(1, 100), prompt(2, 90), prompt(3, 1), prompt(4, 2)];
        let ids: Vec<_> = texts.iter().map(|t| rig.submit(t, asking(9, 5))).collect();
        // The rows of one prompt hold nobody else up.
        let other = rig.submit(&prompt(5, 40), sampled(9, 6));
        assert!(rig.step());
        rig.run_to_end();
        for (id, text) in ids.iter().zip(&texts) {
            rig.assert_exact(*id, text, &asking(9, 5));
        }
        rig.assert_exact(other, &prompt(5, 40), &sampled(9, 6));
        rig.assert_idle();
    }
}

#[test]
fn a_prefix_that_is_held_is_computed_again_and_stays_held() {
    let text = prompt(1, 100);
    let mut rig = Rig::new(config(200, 16));
    let cached = |rig: &Rig, id: SequenceId| rig.heard[&id].cached_tokens;
    let first = rig.submit(&text, sampled(4, 1));
    rig.run_to_end();
    let second = rig.submit(&text, asking(4, 1));
    rig.run_to_end();
    let third = rig.submit(&text, sampled(4, 1));
    rig.run_to_end();
    rig.assert_exact(second, &text, &asking(4, 1));
    assert_eq!(cached(&rig, first), Some(0));
    assert_eq!(cached(&rig, second), Some(0));
    assert_eq!(cached(&rig, third), Some(96));

    // What such a prompt computes is there for others.
    let mut rig = Rig::new(config(200, 16));
    rig.submit(&text, asking(4, 1));
    rig.run_to_end();
    let other = rig.submit(&text, sampled(4, 1));
    rig.run_to_end();
    assert_eq!(cached(&rig, other), Some(96));
    rig.assert_idle();
}

#[test]
fn a_prompt_that_is_handed_off_is_told_by_prefill_alone() {
    let text = prompt(1, 40);
    let (mut prefill, mut decode) = (Rig::new(config(64, 16)), Rig::new(config(64, 16)));
    // The decode worker holds a prefix: that saves a transfer, and prefill tells everything.
    decode.submit(&text, sampled(2, 1));
    decode.run_to_end();
    let spec = spec(prefill.now, &text, asking(6, 1));
    let from = prefill
        .try_submit(spec.clone(), AfterPrompt::HandOff)
        .expect("accepted");
    let reserved = decode.try_reserve(spec).expect("reserved");
    assert_eq!(reserved.reused_pages, 2);
    prefill.run_to_end();
    assert_eq!(told(&prefill, from), 39);
    let first = prefill.heard[&from].clone();
    let sources = &first.scheduled.as_ref().expect("scheduled")[2..];
    for (source, (target, _)) in sources.iter().zip(&reserved.slots) {
        decode.memory.write(*target, prefill.memory.read(*source));
    }
    decode
        .scheduler
        .land(reserved.id, &first.tokens, &[0])
        .expect("lands");
    decode.run_to_end();
    prefill.scheduler.release(from);
    assert!(decode.heard[&reserved.id].done.is_some());
    assert_eq!(told(&decode, reserved.id), 0);
    prefill.assert_idle();
    decode.assert_idle();
}

/// Preempted half way and after the prompt: nothing is told twice, and what was told may be a prefix hit.
#[test]
fn a_preemption_repeats_nothing() {
    let mut half_way = 0;
    for seed in 0..40 {
        println!("seed {seed}");
        for choices in [1, 3] {
            let mut rig = Rig::new(config(14, 16));
            rig.scheduler.config.max_prompt_rows = 3;
            let old = prompt(seed, 60);
            let first = rig.submit(&old, sampled(100, seed));
            for _ in 0..55 + seed {
                rig.step();
            }
            let text = prompt(1000 + seed, 80);
            let params = SamplingParams {
                choices,
                ..asking(8, seed)
            };
            let id = rig.submit(&text, params.clone());
            let mut before = 0;
            while rig.step() {
                let preempted = rig.scheduler.groups.get(&id).map(|g| g.preemptions);
                if preempted == Some(0) {
                    before = told(&rig, id);
                }
            }
            rig.assert_exact(id, &text, &params);
            rig.assert_exact(first, &old, &sampled(100, seed));
            let was_preempted = rig.heard[&id].done > Some(0);
            half_way += usize::from(was_preempted && (1..79).contains(&before));
            rig.assert_idle();
        }
    }
    assert!(half_way > 5, "{half_way} preemptions half way");
}

#[test]
fn one_token_of_completion_is_enough() {
    let text = prompt(1, 50);
    let mut rig = Rig::new(config(64, 16));
    let params = SamplingParams {
        choices: 4,
        ..asking(1, 3)
    };
    let id = rig.submit(&text, params.clone());
    rig.run_to_end();
    rig.assert_exact(id, &text, &params);
    rig.assert_idle();
}

#[test]
fn logits_that_are_no_numbers_end_their_own_sequence() {
    let mut rig = Rig::new(config(64, 16));
    let mut poisoned = prompt(3, 60);
    poisoned[30] = POISON;
    let (texts, fine) = ([prompt(1, 50), prompt(2, 50)], asking(5, 1));
    let before = rig.submit(&texts[0], fine.clone());
    let sick = rig.submit(&poisoned, asking(5, 1));
    let after = rig.submit(&texts[1], fine.clone());
    // Without log-probabilities of the prompt, only the row that is sampled counts.
    let silent = rig.submit(&poisoned, params(5));
    rig.run_to_end();
    rig.assert_exact(before, &texts[0], &fine);
    rig.assert_exact(after, &texts[1], &fine);
    let failed = |id: SequenceId| rig.heard[&id].failed.clone();
    assert_eq!(
        failed(sick),
        Some(SequenceError::PromptLogits { position: 30 })
    );
    assert!(matches!(failed(silent), Some(SequenceError::Logits(_))));
    rig.assert_idle();
}
