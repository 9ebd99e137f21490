//! Hand-off between a prefill and a decode scheduler, with the pages copied by the test.

use std::sync::{Arc, Mutex};

use super::oracle::{Memory, expected};
use super::rig::{Heard, Rig, config, params, prompt, sampled, spec};
use crate::progress::LayerProgress;
use crate::{
    AfterPrompt, ChoiceSoFar, ReservedPages, SchedulerConfig, SequenceError, SequenceId,
    SequenceSpec,
};

/// Copies what the transfer would.
fn transfer(from: &Memory, heard: &Heard, to: &Memory, reserved: &ReservedPages) {
    let sources = heard.scheduled.as_ref().expect("scheduled");
    let sources = &sources[reserved.reused_pages as usize..];
    assert_eq!(sources.len(), reserved.slots.len());
    for (source, (target, _)) in sources.iter().zip(&reserved.slots) {
        to.write(*target, from.read(*source));
    }
}

/// Runs a request over both workers; returns its completions and the ids there.
fn split(
    prefill: &mut Rig,
    decode: &mut Rig,
    spec: &SequenceSpec,
) -> (Vec<Vec<u32>>, SequenceId, SequenceId) {
    let id = prefill
        .try_submit(spec.clone(), AfterPrompt::HandOff)
        .expect("accepted");
    while prefill.heard[&id].prompt_done.is_none() {
        assert!(prefill.step());
    }
    let first = prefill.heard[&id].clone();
    let reserved = decode.try_reserve(spec.clone()).expect("room");
    transfer(&prefill.memory, &first, &decode.memory, &reserved);
    let running = first.prompt_done.clone().expect("done");
    decode
        .scheduler
        .land(reserved.id, &first.tokens, &running)
        .expect("lands");
    prefill.scheduler.release(id);
    prefill.check();
    decode.run_to_end();
    let rest = &decode.heard[&reserved.id];
    assert!(rest.done.is_some());
    let completions = (0..spec.params.choices).map(|choice| {
        let tokens_of = |heard: &Heard| heard.completions.get(&choice).cloned().unwrap_or_default();
        [tokens_of(&first), tokens_of(rest)].concat()
    });
    (completions.collect(), id, reserved.id)
}

fn with_chunk(mut config: SchedulerConfig, chunk: usize) -> SchedulerConfig {
    config.max_chunk = chunk;
    config
}

#[test]
fn xfr_13_every_pair_of_prompt_length_and_chunk_size() {
    for length in [1, 15, 16, 17, 20, 31, 32, 33] {
        for chunk in [1, 7, 16, 17] {
            for choices in [1, 2] {
                let mut prefill = Rig::new(with_chunk(config(16, 16), chunk));
                let mut decode = Rig::new(config(32, 16));
                let mut params = sampled(20, 5);
                params.choices = choices;
                let text = prompt(u64::from(length), length);
                let spec = spec(prefill.now, &text, params.clone());
                let (completions, _, id) = split(&mut prefill, &mut decode, &spec);
                assert_eq!(
                    completions,
                    expected(&text, &params, 20, &[]),
                    "{length} {chunk}"
                );
                assert!(decode.heard[&id].first_step);
                let steps = u64::from(length).div_ceil(chunk as u64);
                assert_eq!(prefill.steps, steps);
                prefill.assert_idle();
                decode.assert_idle();
            }
        }
    }
}

#[test]
fn sch_07_a_full_prefix_hit_leaves_the_last_token_to_compute() {
    let text = prompt(3, 48);
    let mut rig = Rig::new(config(64, 16));
    for length in [32, 32, 16, 17, 31, 33, 48, 48, 32, 1] {
        let text = &text[..length];
        let id = rig.submit(text, params(5));
        rig.run_to_end();
        rig.assert_exact(id, text, &params(5));
    }
    for length in [16, 17, 31, 32, 33, 48] {
        let id = rig.submit(&text[..length], params(1));
        rig.run_to_end();
        let cached = rig.heard[&id].cached_tokens;
        assert_eq!(
            cached,
            Some((length as u32 - 1) / 16 * 16),
            "{length} tokens"
        );
    }
    assert!(rig.scheduler.counters.prefix_hit_tokens > 0);
}

#[test]
fn sch_07_the_same_over_the_hand_off() {
    let text = prompt(3, 48);
    let mut prefill = Rig::new(config(64, 16));
    let mut decode = Rig::new(config(64, 16));
    // Lengths, and the longest full pages of the text that were handed over before.
    for (length, held) in [
        (32, 0),
        (32, 2),
        (48, 2),
        (16, 3),
        (17, 3),
        (31, 3),
        (32, 3),
        (33, 3),
        (48, 3),
    ] {
        let text = &text[..length];
        let spec = spec(prefill.now, text, params(5));
        let reused = |rig: &Rig| rig.scheduler.counters.prefix_hit_tokens;
        let before = (reused(&prefill), reused(&decode));
        let (completions, id, landed) = split(&mut prefill, &mut decode, &spec);
        assert_eq!(completions, expected(text, &params(5), 5, &[]), "{length}");
        let cached = ((length as u32 - 1) / 16).min(held) * 16;
        assert_eq!(prefill.heard[&id].cached_tokens, Some(cached), "{length}");
        assert_eq!(reused(&prefill) - before.0, u64::from(cached), "{length}");
        assert_eq!(reused(&decode) - before.1, u64::from(cached), "{length}");
        assert!(decode.heard[&landed].done.is_some());
    }
    prefill.assert_idle();
    decode.assert_idle();
}

#[test]
fn completions_are_in_the_prefix_cache_for_the_next_turn() {
    let mut prefill = Rig::new(config(64, 16));
    let mut decode = Rig::new(config(64, 16));
    let text = prompt(4, 20);
    let request = spec(prefill.now, &text, params(30));
    let (completions, _, _) = split(&mut prefill, &mut decode, &request);
    let next = [&text[..], &completions[0], &prompt(5, 9)].concat();
    let id = decode.submit(&next, params(6));
    decode.run_to_end();
    decode.assert_exact(id, &next, &params(6));
    // 20 + 30 tokens, the last of them never computed.
    assert_eq!(decode.heard[&id].cached_tokens, Some(48));
}

#[test]
fn resume_goes_on_where_the_completions_end() {
    for choices in [1, 3] {
        let mut params = sampled(40, 11);
        params.choices = choices;
        let text = prompt(6, 21);
        let whole = expected(&text, &params, 40, &[]);
        let cut = |choice: usize| 3 + 9 * choice;
        let mut rig = Rig::new(config(64, 8));
        let mut resumed = spec(rig.now, &text, params.clone());
        resumed.completions = (0..choices as usize)
            .map(|choice| ChoiceSoFar {
                token_ids: whole[choice][..cut(choice)].to_vec(),
                ended: false,
            })
            .collect();
        let id = rig
            .try_submit(resumed.clone(), AfterPrompt::Decode)
            .expect("accepted");
        rig.run_to_end();
        for choice in 0..choices as usize {
            assert_eq!(rig.completions(id)[choice], whole[choice][cut(choice)..]);
        }
        let mut prefill = Rig::new(config(64, 8));
        let mut decode = Rig::new(config(64, 8));
        let (rest, _, _) = split(&mut prefill, &mut decode, &resumed);
        for choice in 0..choices as usize {
            assert_eq!(rest[choice], whole[choice][cut(choice)..]);
        }
        prefill.assert_idle();
        decode.assert_idle();
    }
}

#[test]
fn resume_with_one_choice_left_does_not_run_the_ended_ones() {
    let mut params = sampled(12, 2);
    params.choices = 2;
    let text = prompt(8, 10);
    let whole = expected(&text, &params, 12, &[]);
    let mut rig = Rig::new(config(64, 8));
    let mut resumed = spec(rig.now, &text, params);
    resumed.completions = vec![
        ChoiceSoFar {
            token_ids: whole[0].clone(),
            ended: true,
        },
        ChoiceSoFar {
            token_ids: whole[1][..4].to_vec(),
            ended: false,
        },
    ];
    let id = rig
        .try_submit(resumed, AfterPrompt::Decode)
        .expect("accepted");
    rig.run_to_end();
    let heard = &rig.heard[&id];
    assert_eq!(heard.completions.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(heard.completions[&1], whole[1][4..]);
}

#[test]
fn sch_06_a_landed_sequence_waits_for_a_page_and_is_not_recomputed() {
    let mut prefill = Rig::new(config(16, 16));
    let mut decode = Rig::new(config(5, 16));
    let text = prompt(1, 32);
    let request = spec(prefill.now, &text, params(10));
    let id = prefill
        .try_submit(request.clone(), AfterPrompt::HandOff)
        .expect("accepted");
    prefill.run_to_end();
    let first = prefill.heard[&id].clone();
    // A pinned hand-off takes the rest of the pool: no page to grow into.
    let other = spec(decode.now, &prompt(2, 40), params(2));
    let blocker = decode
        .try_submit(other, AfterPrompt::HandOff)
        .expect("accepted");
    decode.run_to_end();
    let reserved = decode.try_reserve(request).expect("room");
    assert_eq!(decode.scheduler.pool.ledger().available(), 0);
    transfer(&prefill.memory, &first, &decode.memory, &reserved);
    decode
        .scheduler
        .land(reserved.id, &first.tokens, &[0])
        .expect("lands");
    for _ in 0..3 {
        assert!(!decode.step(), "nothing can run");
    }
    assert_eq!(
        decode.scheduler.pool.ledger().live,
        5,
        "its pages are still there"
    );
    decode.scheduler.release(blocker);
    let plan = decode.plan().expect("a page is free");
    assert_eq!(
        (plan.slices[0].from, plan.slices[0].len),
        (32, 1),
        "no prompt token again"
    );
    decode.run(plan);
    decode.run_to_end();
    let heard = &decode.heard[&reserved.id];
    assert_eq!(heard.done, Some(0));
    assert_eq!(
        heard.completions[&0],
        expected(&text, &params(10), 10, &[])[0][1..]
    );
    decode.assert_idle();
}

#[test]
fn sch_03_pages_pinned_by_a_transfer_are_no_reason_to_preempt() {
    // 4 running sequences fill the pool; the latest is a hand-off whose pages are pinned.
    let mut rig = Rig::new(config(8, 16));
    let texts: Vec<_> = (0..3).map(|n| prompt(n, 30)).collect();
    let ids: Vec<_> = texts.iter().map(|t| rig.submit(t, params(40))).collect();
    let pinned = rig
        .try_submit(
            spec(rig.now, &prompt(9, 30), params(9)),
            AfterPrompt::HandOff,
        )
        .expect("accepted");
    while rig.heard[&pinned].prompt_done.is_none() {
        assert!(rig.step());
    }
    let mut tokens = rig.scheduler.counters.tokens;
    while rig.heard[&ids[0]].done.is_none() {
        assert!(rig.step());
        assert!(
            rig.scheduler.counters.tokens > tokens,
            "throughput is never 0"
        );
        tokens = rig.scheduler.counters.tokens;
        let held = rig.scheduler.groups[&pinned].tables()[0].len();
        assert_eq!(held, 2, "the pinned pages stay");
    }
    // The first needed three more pages, each of the others has two: one preemption gives enough
    // for two of them.
    assert!(rig.scheduler.counters.preemptions <= 2);
    rig.scheduler.release(pinned);
    rig.run_to_end();
    for (id, text) in ids.iter().zip(&texts) {
        rig.assert_exact(*id, text, &params(40));
    }
    rig.assert_idle();
}

#[test]
fn sch_03_nobody_is_preempted_in_vain() {
    // The later two share one full page of a prefix with a pinned hand-off, so that preempting one of
    // them frees its own page only.
    let mut rig = Rig::new(config(5, 16));
    let shared = prompt(1, 17);
    let pinned = rig
        .try_submit(spec(rig.now, &shared, params(2)), AfterPrompt::HandOff)
        .expect("accepted");
    rig.run_to_end();
    let first = rig.submit(&prompt(2, 15), params(30));
    while rig.heard[&first].prompt_done.is_none() {
        rig.step();
    }
    let later = rig.submit(&shared, params(12));
    while rig.scheduler.pool.ledger().available() > 0 {
        assert!(rig.step());
    }
    let group = &rig.scheduler.groups[&later];
    assert_eq!(
        rig.scheduler.pool.freeable(group.tables()),
        1,
        "not the shared page"
    );
    rig.run_to_end();
    assert!(rig.scheduler.counters.preemptions <= 1);
    rig.scheduler.release(pinned);
    rig.run_to_end();
    rig.assert_exact(first, &prompt(2, 15), &params(30));
    rig.assert_exact(later, &shared, &params(12));
    rig.assert_idle();
}

/// Remembers what a transfer would be told.
#[derive(Default)]
struct Told(Mutex<Vec<(u32, u32)>>, Mutex<bool>);

impl LayerProgress for Told {
    fn advance(&self, layer: u32, tokens: u32) {
        self.0.lock().expect("not poisoned").push((layer, tokens));
    }
    fn finish(&self) {
        *self.1.lock().expect("not poisoned") = true;
    }
}

#[test]
fn listeners_hear_of_hand_off_prompts_only() {
    let mut rig = Rig::new(with_chunk(config(32, 16), 20));
    let told = Arc::new(Told::default());
    let (id, listener) = (rig.new_id(), Arc::clone(&told));
    let factory = Box::new(move |pages: &[_], cached| {
        assert_eq!((pages.len(), cached), (3, 0));
        listener as Arc<dyn LayerProgress>
    });
    let request = spec(rig.now, &prompt(1, 41), params(3));
    rig.scheduler
        .submit(rig.now, id, request, AfterPrompt::HandOff, Some(factory))
        .expect("accepted");
    rig.submit(&prompt(2, 10), params(3));
    let mut heard = Vec::new();
    while let Some(plan) = rig.plan() {
        for (listener, tokens, is_last) in rig.scheduler.listeners(&plan) {
            listener.advance(0, tokens);
            heard.push((tokens, is_last));
        }
        rig.run(plan);
    }
    assert_eq!(heard, [(20, false), (40, false), (41, true)]);
    assert_eq!(
        *told.0.lock().expect("not poisoned"),
        [(0, 20), (0, 40), (0, 41)]
    );
}

#[test]
fn no_prompt_starts_while_too_many_pages_wait_for_grants() {
    let mut config = config(32, 16);
    config.max_pages_awaiting_grant = 2;
    let mut rig = Rig::new(config);
    let submit = |rig: &mut Rig, n| {
        let request = spec(rig.now, &prompt(n, 40), params(3));
        rig.try_submit(request, AfterPrompt::HandOff)
            .expect("accepted")
    };
    let ids: Vec<_> = (0..3).map(|n| submit(&mut rig, n)).collect();
    rig.run_to_end();
    assert!(rig.heard[&ids[0]].prompt_done.is_some());
    assert!(rig.heard[&ids[1]].scheduled.is_none(), "3 pages wait");
    // A grant that comes to nothing gives no room.
    rig.scheduler.set_granted(ids[0], true);
    rig.scheduler.set_granted(ids[0], false);
    rig.run_to_end();
    assert!(rig.heard[&ids[1]].scheduled.is_none(), "they wait again");
    rig.scheduler.set_granted(ids[0], true);
    rig.run_to_end();
    assert!(rig.heard[&ids[1]].prompt_done.is_some());
    assert!(rig.heard[&ids[2]].scheduled.is_none());
    rig.scheduler.release(ids[1]);
    rig.run_to_end();
    assert!(rig.heard[&ids[2]].prompt_done.is_some());
}

#[test]
fn a_landing_that_contradicts_the_sequence_is_refused() {
    let mut rig = Rig::new(config(32, 16));
    let request = spec(rig.now, &prompt(1, 20), params(5));
    let reserved = rig.try_reserve(request).expect("room");
    let token = |choice, position, token_id| crate::Token {
        choice,
        position,
        token_id,
        logprobs: None,
        finish: None,
    };
    let bad = [
        (vec![], vec![0]),
        (vec![token(0, 1, 5)], vec![0]),
        (vec![token(1, 0, 5)], vec![0]),
        (vec![token(0, 0, 5), token(0, 0, 5)], vec![0]),
        (vec![token(0, 0, 5)], vec![0, 1]),
        (vec![token(0, 0, 99)], vec![0]),
    ];
    for (tokens, running) in bad {
        let landed = rig.scheduler.land(reserved.id, &tokens, &running);
        assert!(
            matches!(landed, Err(SequenceError::BadSpec(_))),
            "{tokens:?}"
        );
        assert_eq!(rig.scheduler.pool.ledger().granted, 2);
    }
    assert!(
        rig.scheduler
            .land(reserved.id, &[token(0, 0, 5)], &[])
            .is_ok()
    );
    rig.listen();
    assert_eq!(rig.heard[&reserved.id].done, Some(0), "no choice runs");
    let again = rig.scheduler.land(reserved.id, &[token(0, 0, 5)], &[0]);
    assert_eq!(again, Err(SequenceError::UnknownSequence));
    rig.assert_idle();
}

#[test]
fn only_what_a_peer_may_write_is_quarantined() {
    let mut rig = Rig::new(config(32, 16));
    let text = prompt(1, 60);
    rig.submit(&text[..40], params(2));
    rig.run_to_end();
    let request = spec(rig.now, &text, params(5));
    let reserved = rig.try_reserve(request).expect("room");
    assert_eq!((reserved.reused_pages, reserved.slots.len()), (2, 2));
    let ledger = |rig: &Rig| rig.scheduler.pool.ledger();
    assert_eq!((ledger(&rig).granted, ledger(&rig).cached), (4, 0));
    rig.scheduler.quarantine(reserved.id);
    assert_eq!((ledger(&rig).quarantined, ledger(&rig).cached), (2, 2));
    rig.scheduler.quarantine(reserved.id);
    assert_eq!(ledger(&rig).quarantined, 2, "once");
    rig.scheduler.release(reserved.id);
    rig.assert_idle();
}

#[test]
fn sch_03_who_holds_only_pages_that_a_transfer_shares_is_left_alone() {
    let mut rig = Rig::new(config(8, 16));
    let shared = prompt(1, 40);
    let older = rig.submit(&prompt(2, 10), params(70));
    let middle = rig.submit(&prompt(3, 5), params(5));
    let later = rig.submit(&shared[..32], params(5));
    assert!(rig.step());
    // The later one has two full pages and waits for its reader; the hand-off reuses both.
    rig.scheduler.set_paused(later, true);
    rig.scheduler.set_paused(middle, true);
    let pinned = rig
        .try_submit(spec(rig.now, &shared, params(2)), AfterPrompt::HandOff)
        .expect("accepted");
    rig.run_to_end();
    assert_eq!(rig.heard[&pinned].cached_tokens, Some(32));
    assert!(rig.heard[&older].done.is_some());
    let preemptions = |id| rig.scheduler.groups[&id].preemptions;
    assert_eq!(preemptions(middle), 1);
    assert_eq!(preemptions(later), 0, "nothing would be free now");
    rig.scheduler.release(pinned);
    rig.scheduler.set_paused(later, false);
    rig.scheduler.set_paused(middle, false);
    rig.run_to_end();
    rig.assert_exact(older, &prompt(2, 10), &params(70));
    rig.assert_exact(middle, &prompt(3, 5), &params(5));
    rig.assert_exact(later, &shared[..32], &params(5));
    rig.assert_idle();
}
