//! Scheduling cases, each named after its case id.

use super::oracle::expected;
use super::rig::{Rig, config, params, prompt, sampled, spec};
use crate::{AfterPrompt, FinishReason, SequenceError};

#[test]
fn a_request_runs_to_its_end() {
    let mut rig = Rig::new(config(32, 16));
    let (text, params) = (prompt(1, 40), sampled(20, 3));
    let id = rig.submit(&text, params.clone());
    rig.run_to_end();
    rig.assert_exact(id, &text, &params);
    let heard = &rig.heard[&id];
    assert_eq!(heard.cached_tokens, Some(0));
    assert_eq!(heard.prompt_done, Some(vec![0]));
    assert_eq!(heard.finish[&0], FinishReason::Length);
    rig.assert_idle();
}

#[test]
fn xfr_15_chunks_are_told_but_for_the_one_that_brings_a_token() {
    let mut settings = config(32, 16);
    settings.max_chunk = 16;
    let mut rig = Rig::new(settings);
    let id = rig.submit(&prompt(1, 40), params(5));
    rig.run_to_end();
    assert_eq!(rig.heard[&id].chunks, 2, "of 16, 16 and 8 tokens");
}

#[test]
fn sch_01_what_can_never_fit_is_refused_at_once() {
    let mut rig = Rig::new(config(8, 16));
    let long = spec(rig.now, &prompt(1, 200), params(10));
    let refused = rig.try_submit(long, AfterPrompt::Decode);
    let total = 8;
    assert_eq!(refused, Err(SequenceError::NeverFits { needed: 14, total }));
    let growing = spec(rig.now, &prompt(2, 100), params(100));
    let refused = rig.try_submit(growing.clone(), AfterPrompt::Decode);
    assert_eq!(refused, Err(SequenceError::NeverFits { needed: 13, total }));
    assert!(rig.try_reserve(growing.clone()).is_err());
    // A prefill worker holds the prompt only.
    assert!(rig.try_submit(growing, AfterPrompt::HandOff).is_ok());
    // Two choices share the full prompt pages and nothing else.
    let mut twice = sampled(29, 1);
    twice.choices = 2;
    let fits = spec(rig.now, &prompt(3, 36), twice.clone());
    assert!(
        rig.try_submit(fits, AfterPrompt::Decode).is_ok(),
        "2 + 2 x 2"
    );
    twice.choices = 4;
    let needs = spec(rig.now, &prompt(3, 36), twice);
    let refused = rig.try_submit(needs, AfterPrompt::Decode);
    assert_eq!(refused, Err(SequenceError::NeverFits { needed: 10, total }));

    let mut rig = Rig::new(config(8, 16));
    let texts: Vec<_> = (0..3).map(|n| prompt(n, 10)).collect();
    let ids: Vec<_> = texts.iter().map(|t| rig.submit(t, params(30))).collect();
    rig.run_to_end();
    for (id, text) in ids.iter().zip(&texts) {
        rig.assert_exact(*id, text, &params(30));
    }
}

#[test]
fn sch_05_preempted_requests_give_the_same_tokens() {
    for seeded in [false, true] {
        let params = |n| if seeded { sampled(35, n) } else { params(35) };
        let mut rig = Rig::new(config(7, 16));
        let texts = [prompt(1, 34), prompt(2, 34)];
        let ids: Vec<_> = (0..2)
            .map(|n| rig.submit(&texts[n], params(n as u64)))
            .collect();
        rig.run_to_end();
        for n in 0..2 {
            rig.assert_exact(ids[n], &texts[n], &params(n as u64));
        }
        assert_eq!(
            rig.heard[&ids[0]].done,
            Some(0),
            "the first is never preempted"
        );
        assert_eq!(rig.heard[&ids[1]].done, Some(1), "once, no thrash");
        rig.assert_idle();
    }
}

#[test]
fn smp_02_choices_differ_repeat_and_end_each_for_itself() {
    let text = prompt(9, 21);
    let mut params = sampled(24, 7);
    params.choices = 4;
    params.ignore_eos = false;
    let reference = expected(&text, &params, 24, &[]);
    for _ in 0..2 {
        let mut rig = Rig::new(config(32, 8));
        let id = rig.submit(&text, params.clone());
        while rig.heard[&id].prompt_done.is_none() {
            assert!(rig.step());
        }
        rig.run_to_end();
        rig.assert_exact(id, &text, &params);
        rig.assert_idle();
    }
    assert!(reference.iter().any(|choice| choice != &reference[0]));
}

#[test]
fn smp_02_choices_share_the_prompt_and_copy_on_the_first_write() {
    let mut params = sampled(24, 7);
    params.choices = 4;
    let mut rig = Rig::new(config(32, 8));
    let text = prompt(9, 21);
    let id = rig.submit(&text, params.clone());
    while rig.heard[&id].prompt_done.is_none() {
        assert!(rig.step());
    }
    let live = |rig: &Rig| rig.scheduler.pool.ledger().live;
    let pages = |rig: &Rig, at: usize| rig.scheduler.groups[&id].tables()[at].pages().to_vec();
    assert_eq!(live(&rig), 3, "four choices hold the same three pages");
    assert!((1..4).all(|choice| pages(&rig, choice) == pages(&rig, 0)));
    let plan = rig.plan().expect("all four go on");
    assert_eq!(
        (plan.slices.len(), plan.copies.len()),
        (4, 3),
        "the last keeps the page"
    );
    assert!(
        plan.copies
            .iter()
            .all(|copy| copy.from == plan.copies[0].from)
    );
    rig.run(plan);
    assert_eq!(
        live(&rig),
        2 + 4,
        "full pages shared, the partial one each for itself"
    );
    assert!((1..4).all(|choice| pages(&rig, choice)[..2] == pages(&rig, 0)[..2]));
    let plan = rig.plan().expect("goes on");
    assert!(plan.copies.is_empty(), "copied once");
    rig.run(plan);
    rig.run_to_end();
    rig.assert_exact(id, &text, &params);
}
