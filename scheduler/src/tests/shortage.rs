//! Too few pages: an older sequence is not overtaken for ever, prompts that are being computed help those
//! that wait, and several choices keep the pages that they were admitted with.

use super::oracle::expected;
use super::rig::{Rig, config, params, prompt, sampled, spec};
use crate::plan::Plan;
use crate::{AfterPrompt, ChoiceSoFar, SequenceId};

/// Two choices of an 8-token prompt that go on after `so_far` of `max_tokens` tokens.
struct Resumed {
    id: SequenceId,
    whole: Vec<Vec<u32>>,
    so_far: usize,
}

impl Resumed {
    fn submit(rig: &mut Rig, so_far: usize, max_tokens: u32) -> Self {
        let mut of_two = sampled(max_tokens, 3);
        of_two.choices = 2;
        let text = prompt(1, 8);
        let whole = expected(&text, &of_two, max_tokens, &[]);
        let mut resumed = spec(rig.now, &text, of_two);
        resumed.completions = whole
            .iter()
            .map(|tokens| ChoiceSoFar {
                token_ids: tokens[..so_far].to_vec(),
                ended: false,
            })
            .collect();
        let id = rig
            .try_submit(resumed, AfterPrompt::Decode)
            .expect("accepted");
        Self { id, whole, so_far }
    }

    fn assert_exact(&self, rig: &Rig) {
        for (choice, rest) in rig.completions(self.id).iter().enumerate() {
            assert_eq!(rest, &self.whole[choice][self.so_far..]);
        }
    }
}

#[test]
fn sch_14_choices_that_are_recomputed_do_not_starve_behind_a_flood() {
    for chunk in [8, 64, 256] {
        let mut config = config(64, 8);
        config.token_budget = 256;
        config.max_chunk = chunk;
        let mut rig = Rig::new(config);
        // As after a preemption: the oldest, with 28 pages of its own for each choice to compute anew.
        let older = Resumed::submit(&mut rig, 220, 224);
        let mut flood = Vec::new();
        while rig.heard[&older.id].done.is_none() {
            assert!(rig.steps < 300, "chunks of {chunk}: starved");
            // More than can ever run, and they end at different times.
            while rig.scheduler.queue.len() < 16 {
                let n = flood.len() as u64;
                let (text, params) = (prompt(n + 2, 24), params(5 + 3 * (n % 8) as u32));
                flood.push((rig.submit(&text, params.clone()), text, params));
            }
            assert!(rig.step());
        }
        assert_eq!(rig.heard[&older.id].done, Some(0));
        older.assert_exact(&rig);
        rig.run_to_end();
        for (id, text, params) in flood {
            rig.assert_exact(id, &text, &params);
        }
        rig.assert_idle();
    }
}

/// The older of two computes two choices anew, 8 pages after the prompt's; the later one has grown
/// meanwhile, so that 7 are left.
fn one_page_short() -> (Rig, Resumed, SequenceId) {
    let mut rig = Rig::new(config(14, 8));
    let older = Resumed::submit(&mut rig, 28, 33);
    rig.scheduler.set_paused(older.id, true);
    let later = rig.submit(&prompt(3, 8), params(60));
    assert!(rig.step());
    rig.scheduler.set_paused(older.id, false);
    assert!(rig.step());
    assert!(
        rig.heard[&older.id].scheduled.is_some(),
        "9 pages and one to grow"
    );
    rig.scheduler.set_paused(older.id, true);
    while rig.heard[&later].tokens.len() < 37 {
        assert!(rig.step());
    }
    assert_eq!(rig.scheduler.pool.ledger().available(), 7);
    rig.scheduler.set_paused(older.id, false);
    (rig, older, later)
}

/// Tokens of the sequence's slices in a plan.
fn lens(plan: &Plan, id: SequenceId) -> Vec<u32> {
    let slices = plan.slices.iter().filter(|slice| slice.id == id);
    slices.map(|slice| slice.len).collect()
}

#[test]
fn sch_03_a_chunk_is_shortened_before_anybody_is_preempted() {
    let (mut rig, older, later) = one_page_short();
    let plan = rig.plan().expect("work");
    assert_eq!(lens(&plan, older.id), [28, 24], "a page less");
    assert_eq!(rig.scheduler.counters.preemptions, 0);
    rig.run(plan);
    // Now not a token of the second choice has a page, and the step does not run the later one.
    rig.scheduler.set_paused(later, true);
    let plan = rig.plan().expect("work");
    assert_eq!(lens(&plan, older.id), [1, 4]);
    assert_eq!(rig.scheduler.groups[&later].preemptions, 1);
    rig.run(plan);
    rig.scheduler.set_paused(later, false);
    rig.run_to_end();
    older.assert_exact(&rig);
    rig.assert_exact(later, &prompt(3, 8), &params(60));
    rig.assert_idle();
}

#[test]
fn sch_14_later_rows_give_way_when_they_need_a_page_themselves() {
    let (mut rig, older, later) = one_page_short();
    let before = rig.steps;
    while rig.heard[&older.id].done.is_none() {
        assert!(rig.step());
    }
    // The later one has four tokens to go in its last page; then the last chunk and four tokens more.
    assert!(rig.steps - before <= 4 + 5, "{} steps", rig.steps - before);
    rig.run_to_end();
    assert_eq!(rig.heard[&later].done, Some(1));
    older.assert_exact(&rig);
    rig.assert_exact(later, &prompt(3, 8), &params(60));
    rig.assert_idle();
}

#[test]
fn pages_of_choices_to_be_recomputed_are_spoken_for() {
    let mut rig = Rig::new(config(16, 8));
    // 9 pages, one of them at once and the others when the prompt is computed.
    let older = Resumed::submit(&mut rig, 28, 30);
    let later: Vec<_> = (0..6)
        .map(|n| {
            let text = prompt(n + 2, 16);
            (rig.submit(&text, params(4)), text)
        })
        .collect();
    rig.step();
    // 16 - 9 less one for each of the choices that run: two more start.
    let running: Vec<_> = later
        .iter()
        .map(|(id, _)| rig.heard[id].scheduled.is_some())
        .collect();
    assert_eq!(running, [true, true, false, false, false, false]);
    let request = spec(rig.now, &prompt(20, 16), params(4));
    assert!(
        rig.try_reserve(request).is_err(),
        "nor does a grant take them"
    );
    rig.run_to_end();
    assert_eq!(rig.scheduler.counters.preemptions, 0);
    older.assert_exact(&rig);
    for (id, text) in later {
        rig.assert_exact(id, &text, &params(4));
    }
    rig.assert_idle();
}

#[test]
fn a_prompt_that_another_computes_starts_without_waiting_for_its_pages() {
    let mut config = config(6, 16);
    config.max_chunk = 16;
    let mut rig = Rig::new(config);
    let text = prompt(1, 65);
    let request = spec(rig.now, &text, params(5));
    // Identical hand-offs of five pages: the second needs one of its own.
    let ids: Vec<_> = (0..2)
        .map(|_| {
            rig.try_submit(request.clone(), AfterPrompt::HandOff)
                .expect("accepted")
        })
        .collect();
    rig.run_to_end();
    let reference = &expected(&text, &params(5), 5, &[])[0][..1];
    for (id, cached) in ids.iter().zip([0, 64]) {
        let heard = &rig.heard[id];
        assert_eq!(
            heard.cached_tokens,
            Some(cached),
            "nothing has been released"
        );
        assert_eq!(heard.prompt_done, Some(vec![0]));
        assert_eq!(heard.completions[&0], reference);
    }
    assert_eq!(rig.scheduler.pool.ledger().live, 6);
    for id in ids {
        rig.scheduler.release(id);
    }
    rig.assert_idle();
}

#[test]
fn a_waiting_prompt_that_needs_fewer_pages_is_looked_at_again() {
    let mut rig = Rig::new(config(9, 8));
    let running = rig.submit(&prompt(9, 8), params(8));
    assert!(rig.step());
    let waiting = Resumed::submit(&mut rig, 28, 30);
    assert!(rig.step());
    assert!(rig.heard[&waiting.id].scheduled.is_none(), "9 pages");
    rig.scheduler.cancel_choice(waiting.id, 1);
    assert!(rig.step());
    assert!(rig.heard[&waiting.id].scheduled.is_some(), "5 pages");
    assert!(rig.heard[&running].done.is_none());
    rig.run_to_end();
    rig.assert_idle();
}
