//! Nobody starves: decode rows beside steady prompts, prompts beside steady decode rows.

use super::rig::{Rig, config, params, prompt, sampled, spec};
use crate::{AfterPrompt, SequenceError};

#[test]
fn sch_14_a_running_stream_beside_a_flood_of_prompts() {
    let mut rig = Rig::new(config(2000, 16));
    let victim = rig.submit(&prompt(1, 20), params(300));
    while rig.heard[&victim].prompt_done.is_none() {
        rig.step();
    }
    let mut ids = Vec::new();
    for n in 0..200 {
        ids.push(rig.submit(&prompt(100 + n, 500), params(4)));
        rig.step();
    }
    let at = &rig.heard[&victim].at;
    let every = u64::from(rig.scheduler.config.decode_every);
    assert!(at.windows(2).all(|gap| gap[1] - gap[0] <= every));
    assert!(at.len() >= 200, "with one running stream: every step");
    rig.run_to_end();
    // In order of arrival: nobody is overtaken.
    let started: Vec<_> = ids.iter().map(|id| rig.heard[id].at[0]).collect();
    assert!(started.is_sorted());
    rig.assert_exact(victim, &prompt(1, 20), &params(300));
}

#[test]
fn sch_14_a_waiting_prompt_beside_steady_streams() {
    for (budget, batch) in [(16, 16), (64, 8), (2, 2), (1, 1), (3, 64)] {
        let mut config = config(2000, 16);
        config.token_budget = budget;
        config.max_chunk = budget;
        config.max_batch = batch;
        let most = config.max_running();
        let every = u64::from(config.decode_every);
        let mut rig = Rig::new(config);
        let running = most - 1;
        let ids: Vec<_> = (0..running)
            .map(|n| rig.submit(&prompt(n as u64, 5), params(400)))
            .collect();
        while ids.iter().any(|id| rig.heard[id].prompt_done.is_none()) {
            assert!(rig.step());
        }
        let waiting = rig.submit(&prompt(99, 40), sampled(5, 1));
        let before = rig.steps;
        while rig.heard[&waiting].prompt_done.is_none() {
            assert!(rig.step());
        }
        // An eighth of the budget is its own; with one slice per step, every second step.
        let share = (budget as u64 / 8).max(1);
        let bound = 2 * 40_u64.div_ceil(share) + every;
        assert!(rig.steps - before <= bound, "{} steps", rig.steps - before);
        // While the prompt was computed, every stream got a token every few steps.
        let most_gap = if budget.min(batch) == 1 {
            2 * every
        } else {
            every
        };
        for id in &ids {
            let mut at = rig.heard[id].at.clone();
            at.retain(|step| *step > before);
            at.insert(0, before);
            at.push(rig.steps);
            let gap = at.windows(2).map(|gap| gap[1] - gap[0]).max();
            assert!(gap <= Some(most_gap + 1), "{gap:?} with budget {budget}");
        }
        rig.scheduler.drain();
        for id in ids {
            rig.scheduler.release(id);
        }
        rig.run_to_end();
        rig.assert_exact(waiting, &prompt(99, 40), &sampled(5, 1));
    }
}

#[test]
fn sch_14_more_choices_than_slices_take_turns() {
    let mut config = config(2000, 16);
    config.max_batch = 4;
    let most = config.max_running();
    let mut rig = Rig::new(config);
    let texts: Vec<_> = (0..40).map(|n| prompt(n, 12)).collect();
    let ids: Vec<_> = texts.iter().map(|t| rig.submit(t, params(30))).collect();
    while rig.step() {
        assert!(rig.scheduler.snapshot().running as usize <= most);
    }
    for (id, text) in ids.iter().zip(&texts) {
        rig.assert_exact(*id, text, &params(30));
        let gap = rig.heard[id].at.windows(2).map(|gap| gap[1] - gap[0]).max();
        assert!(
            gap <= Some(u64::from(rig.scheduler.config.decode_every)),
            "{gap:?}"
        );
    }
}

#[test]
fn reservations_do_not_overtake_what_waits() {
    let mut rig = Rig::new(config(10, 16));
    let running = rig.submit(&prompt(1, 60), params(60));
    rig.step();
    let waiting = rig.submit(&prompt(2, 100), params(10));
    rig.step();
    assert!(rig.heard[&waiting].scheduled.is_none(), "too few pages");
    let request = spec(rig.now, &prompt(3, 10), params(5));
    let refused = rig.try_reserve(request);
    assert!(
        matches!(refused, Err(SequenceError::NoRoom { .. })),
        "{refused:?}"
    );
    rig.run_to_end();
    rig.assert_exact(running, &prompt(1, 60), &params(60));
    rig.assert_exact(waiting, &prompt(2, 100), &params(10));
}

#[test]
fn a_big_prompt_starts_once_the_pool_is_empty_despite_the_headroom() {
    let mut config = config(10, 16);
    config.headroom_percent = 50;
    let mut rig = Rig::new(config);
    let small = rig.submit(&prompt(1, 20), params(10));
    let big = rig.submit(&prompt(2, 150), params(10));
    let last = rig.submit(&prompt(3, 20), params(10));
    rig.run_to_end();
    for (id, text) in [
        (small, prompt(1, 20)),
        (big, prompt(2, 150)),
        (last, prompt(3, 20)),
    ] {
        rig.assert_exact(id, &text, &params(10));
    }
    assert!(rig.heard[&big].at[0] < rig.heard[&last].at[0]);
}

#[test]
fn the_queue_is_bounded() {
    let mut config = config(10, 16);
    config.max_queued = 3;
    let mut rig = Rig::new(config);
    for n in 0..3 {
        rig.submit(&prompt(n, 10), params(2));
    }
    let request = spec(rig.now, &prompt(9, 10), params(2));
    let refused = rig.try_submit(request, AfterPrompt::Decode);
    assert_eq!(refused, Err(SequenceError::QueueFull { limit: 3 }));
}
