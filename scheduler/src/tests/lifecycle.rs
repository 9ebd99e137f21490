//! Every state has one way out: cancel, deadline, failure in each of them, repeated.

use std::time::Duration;

use super::oracle::{POISON, REFUSED, expected};
use super::rig::{CONTEXT, Rig, config, params, prompt, sampled, spec};
use crate::{AfterPrompt, FinishReason, SequenceError, SequenceId, Token};

fn first_token() -> Vec<Token> {
    vec![Token {
        choice: 0,
        position: 0,
        token_id: 5,
        logprobs: None,
        finish: None,
    }]
}

/// Brings a new sequence into a state.
type Bring = fn(&mut Rig) -> SequenceId;

fn hand_off(rig: &mut Rig) -> SequenceId {
    let request = spec(rig.now, &prompt(rig.steps, 30), sampled(30, 1));
    rig.try_submit(request, AfterPrompt::HandOff).expect("room")
}

fn step_until(rig: &mut Rig, is_there: impl Fn(&Rig) -> bool) {
    for _ in 0..100 {
        if is_there(rig) {
            return;
        }
        rig.step();
    }
    panic!("the state is never reached");
}

const STATES: [(&str, Bring); 10] = [
    ("queued", |rig| rig.submit(&prompt(1, 30), params(30))),
    ("prefilling", |rig| {
        // A new prompt each time: no prefix hit shortens it.
        let id = rig.submit(&prompt(rig.steps, 30), params(30));
        assert!(rig.step());
        assert!(rig.heard[&id].prompt_done.is_none());
        id
    }),
    ("running", |rig| {
        let mut choices = sampled(30, 1);
        choices.choices = 2;
        let id = rig.submit(&prompt(1, 30), choices);
        step_until(rig, |rig| rig.heard[&id].tokens.len() > 5);
        id
    }),
    ("preempted", |rig| {
        let older = rig.submit(&prompt(2, 60), params(50));
        let id = rig.submit(&prompt(1, 30), params(50));
        step_until(rig, |rig| rig.scheduler.groups[&id].preemptions > 0);
        rig.scheduler.release(older);
        id
    }),
    ("hand-off prefilling", |rig| {
        let id = hand_off(rig);
        assert!(rig.step());
        id
    }),
    ("hand-off pinned", |rig| {
        let id = hand_off(rig);
        rig.run_to_end();
        assert!(rig.heard[&id].prompt_done.is_some());
        id
    }),
    ("transferring", |rig| {
        let request = spec(rig.now, &prompt(1, 30), params(30));
        rig.try_reserve(request).expect("room").id
    }),
    ("quarantined", |rig| {
        let request = spec(rig.now, &prompt(1, 30), params(30));
        let id = rig.try_reserve(request).expect("room").id;
        rig.scheduler.quarantine(id);
        assert!(rig.scheduler.pool.ledger().quarantined > 0);
        id
    }),
    ("landed", |rig| {
        let request = spec(rig.now, &prompt(1, 30), params(30));
        let id = rig.try_reserve(request).expect("room").id;
        rig.scheduler.land(id, &first_token(), &[0]).expect("lands");
        id
    }),
    ("finished", |rig| {
        let id = rig.submit(&prompt(1, 30), params(2));
        rig.run_to_end();
        assert!(rig.heard[&id].done.is_some());
        id
    }),
];

fn small() -> Rig {
    let mut config = config(8, 16);
    config.max_chunk = 16;
    Rig::new(config)
}

#[test]
fn sch_13_release_in_each_state_gives_everything_back() {
    for (name, bring) in STATES {
        let mut rig = small();
        for _ in 0..500 {
            let id = bring(&mut rig);
            rig.scheduler.release(id);
            rig.scheduler.release(id);
            rig.listen();
            rig.check();
            assert!(rig.scheduler.pool.ledger().is_idle(), "{name}");
            assert!(rig.scheduler.groups.is_empty(), "{name}");
            assert!(rig.scheduler.queue.is_empty(), "{name}");
            assert!(!rig.step(), "{name}: nothing is left to run");
            rig.heard.clear();
        }
    }
}

#[test]
fn sch_13_a_vanished_reader_cancels_but_pinned_pages_wait_for_release() {
    for (name, bring) in STATES {
        let mut rig = small();
        let id = bring(&mut rig);
        let held = rig.scheduler.pool.ledger();
        rig.scheduler.reader_gone(id);
        rig.listen();
        assert!(!rig.step(), "{name}: no token after the cancel");
        let ledger = rig.scheduler.pool.ledger();
        let is_pinned =
            name.starts_with("hand-off") || name == "transferring" || name == "quarantined";
        if is_pinned {
            assert_eq!(ledger, held, "{name}");
            rig.scheduler.release(id);
        }
        assert!(rig.scheduler.pool.ledger().is_idle(), "{name}");
        rig.assert_idle();
    }
}

#[test]
fn sch_13_deadlines_end_each_state() {
    for (name, bring) in STATES {
        let mut rig = small();
        let id = bring(&mut rig);
        rig.now += Duration::from_secs(5_001);
        assert!(!rig.step(), "{name}");
        match name {
            "finished" | "quarantined" => assert_eq!(rig.heard[&id].failed, None, "{name}"),
            _ => {
                let failed = rig.heard[&id].failed.clone();
                assert_eq!(failed, Some(SequenceError::DeadlineExceeded), "{name}");
            }
        }
        assert_eq!(rig.scheduler.next_deadline(), None, "{name}: told once");
        // Late notes of a transfer do no harm.
        assert!(rig.scheduler.land(id, &first_token(), &[0]).is_err());
        rig.scheduler.quarantine(id);
        rig.check();
        rig.scheduler.release(id);
        rig.assert_idle();
    }
}

#[test]
fn sch_13_cancelling_all_choices_ends_each_state() {
    for (name, bring) in STATES {
        let mut rig = small();
        let id = bring(&mut rig);
        for choice in 0..3 {
            rig.scheduler.cancel_choice(id, choice);
            rig.check();
        }
        rig.listen();
        assert!(!rig.step(), "{name}");
        let hears_done = !name.starts_with("hand-off") && name != "quarantined";
        assert_eq!(rig.heard[&id].done.is_some(), hears_done, "{name}");
        rig.scheduler.release(id);
        rig.assert_idle();
    }
}

#[test]
fn a_cancelled_choice_leaves_the_others_alone() {
    let mut rig = Rig::new(config(64, 8));
    let text = prompt(1, 19);
    let mut params = sampled(20, 4);
    params.choices = 3;
    let whole = expected(&text, &params, 20, &[]);
    let id = rig.submit(&text, params);
    step_until(&mut rig, |rig| rig.heard[&id].tokens.len() >= 9);
    rig.scheduler.cancel_choice(id, 1);
    rig.run_to_end();
    let heard = &rig.heard[&id];
    assert!(heard.completions[&1].len() < 20);
    assert_eq!(heard.completions[&0], whole[0]);
    assert_eq!(heard.completions[&2], whole[2]);
    assert!(heard.done.is_some());
    rig.assert_idle();
}

#[test]
fn str_01_no_token_is_sampled_after_the_cancel_step() {
    let mut rig = Rig::new(config(64, 16));
    for cycle in 0..100 {
        let id = rig.submit(&prompt(cycle, 10), params(400));
        step_until(&mut rig, |rig| rig.heard[&id].tokens.len() >= 3);
        let tokens = rig.scheduler.counters.tokens;
        rig.scheduler.reader_gone(id);
        assert!(!rig.step());
        assert_eq!(rig.scheduler.counters.tokens, tokens);
        assert_eq!(rig.scheduler.snapshot().running, 0);
        rig.assert_idle();
    }
    assert_eq!(rig.scheduler.snapshot().cancelled, 100);
}

#[test]
fn sch_15_one_sequences_end_or_error_is_its_own() {
    let mut rig = Rig::new(config(128, 16));
    let mut poisoned = prompt(3, 20);
    poisoned[7] = POISON;
    let mut refused = prompt(4, 20);
    refused[19] = REFUSED;
    let texts = [prompt(1, 20), prompt(2, CONTEXT - 10)];
    let normal = rig.submit(&texts[0], sampled(60, 1));
    let limited = rig.submit(&texts[1], sampled(60, 2));
    let nan = rig.submit(&poisoned, params(60));
    let bad = rig.submit(&refused, params(60));
    let other = rig.submit(&texts[0], sampled(60, 3));
    rig.run_to_end();
    rig.assert_exact(normal, &texts[0], &sampled(60, 1));
    rig.assert_exact(other, &texts[0], &sampled(60, 3));
    rig.assert_exact(limited, &texts[1], &sampled(60, 2));
    assert_eq!(rig.completions(limited)[0].len(), 10);
    assert_eq!(rig.heard[&limited].finish[&0], FinishReason::Length);
    let failed = |id: SequenceId| rig.heard[&id].failed.clone();
    assert!(
        matches!(failed(nan), Some(SequenceError::Logits(_))),
        "{:?}",
        failed(nan)
    );
    assert!(
        matches!(failed(bad), Some(SequenceError::Internal(_))),
        "{:?}",
        failed(bad)
    );
    rig.assert_idle();
}

#[test]
fn the_end_of_sequence_ends_unless_ignored() {
    let text = prompt(5, 9);
    let mut params = sampled(200, 1);
    params.choices = 4;
    params.ignore_eos = false;
    let mut rig = Rig::new(config(200, 16));
    let id = rig.submit(&text, params.clone());
    rig.run_to_end();
    rig.assert_exact(id, &text, &params);
    let heard = &rig.heard[&id];
    for (choice, completion) in &heard.completions {
        let by_eos = heard.finish[choice] == FinishReason::Stop;
        assert_eq!(completion.last() == Some(&0), by_eos);
        assert!(completion.len() == 200 || by_eos);
    }
    assert!(heard.finish.values().any(|f| *f == FinishReason::Stop));
    // A stop token, and the minimum length before it.
    let stop = heard.completions[&0][2];
    params.stop_token_ids = vec![stop];
    params.min_tokens = 5;
    let id = rig.submit(&text, params.clone());
    rig.run_to_end();
    rig.assert_exact(id, &text, &params);
    assert!(rig.heard[&id].completions.values().all(|c| c.len() >= 5));
}

#[test]
fn bad_specs_are_refused() {
    let mut rig = Rig::new(config(64, 16));
    let good = spec(rig.now, &prompt(1, 10), params(5));
    let refused = |rig: &mut Rig, spec| rig.try_submit(spec, AfterPrompt::Decode).expect_err("bad");
    let mut bad = good.clone();
    bad.prompt = [].into();
    assert!(matches!(refused(&mut rig, bad), SequenceError::BadSpec(_)));
    let mut bad = good.clone();
    bad.prompt = [99].into();
    assert!(matches!(refused(&mut rig, bad), SequenceError::BadSpec(_)));
    let mut bad = good.clone();
    bad.completions = vec![crate::ChoiceSoFar::default(); 2];
    assert!(matches!(refused(&mut rig, bad), SequenceError::BadSpec(_)));
    let mut bad = good.clone();
    bad.deadline = rig.now;
    assert_eq!(refused(&mut rig, bad), SequenceError::DeadlineExceeded);
    let mut bad = good.clone();
    bad.prompt = prompt(1, CONTEXT).into();
    let limit = CONTEXT - 1;
    let too_long = SequenceError::PromptTooLong {
        tokens: CONTEXT,
        limit,
    };
    assert_eq!(refused(&mut rig, bad), too_long);
    rig.scheduler.drain();
    assert_eq!(refused(&mut rig, good), SequenceError::Draining);
}

#[test]
fn bad_settings_are_named() {
    type Spoil = fn(&mut crate::SchedulerConfig);
    let bad: [(&str, Spoil); 4] = [
        ("pages", |c| c.pages = 0),
        ("max_chunk", |c| c.max_chunk = c.token_budget + 1),
        ("headroom_percent", |c| c.headroom_percent = 91),
        ("decode_every", |c| c.decode_every = 0),
    ];
    for (name, spoil) in bad {
        let mut config = config(8, 16);
        spoil(&mut config);
        match config.validate() {
            Err(SequenceError::BadConfig(reason)) => assert!(reason.contains(name), "{reason}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_reader_that_leaves_between_plan_and_step_takes_only_its_own_rows() {
    let texts: Vec<_> = (0..4).map(|n| prompt(n, 12)).collect();
    for leaver in 0..4 {
        for is_running in [false, true] {
            let mut rig = Rig::new(config(64, 16));
            let mut choices = sampled(20, 1);
            choices.choices = 2;
            let ids: Vec<_> = texts
                .iter()
                .map(|text| rig.submit(text, choices.clone()))
                .collect();
            let pinned = hand_off(&mut rig);
            if is_running {
                assert!(rig.step());
            }
            let mut plan = rig.plan().expect("work");
            rig.scheduler.reader_gone(ids[leaver]);
            rig.scheduler.reader_gone(pinned);
            rig.scheduler.prune(&mut plan);
            assert!(!plan.contains(ids[leaver]) && !plan.contains(pinned));
            rig.run(plan);
            rig.run_to_end();
            for (n, id) in ids.iter().enumerate().filter(|(n, _)| *n != leaver) {
                rig.assert_exact(*id, &texts[n], &choices);
            }
            rig.scheduler.release(pinned);
            rig.assert_idle();
        }
    }
}
