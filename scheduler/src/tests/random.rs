//! Random models: prefill and decode schedulers under random requests, cancels, broken transfers, slow
//! readers and tiny pools. Whatever finishes has exactly the model's tokens, the ledger adds up after
//! every operation, and at the end nothing is held.

use std::collections::BTreeMap;

use baton_sampling::SamplingParams;

use super::oracle::{expected, expected_prompt};
use super::rig::{CONTEXT, Heard, Rig, Rng, config, prompt, sampled, spec};
use crate::sequence::Told;
use crate::{AfterPrompt, ReservedPages, SchedulerConfig, SequenceError, SequenceId, SequenceSpec};

/// A request and where it is.
struct Request {
    spec: SequenceSpec,
    place: Place,
}

enum Place {
    /// Computed where it decodes.
    Local(SequenceId),
    /// On the prefill side, with or without pages at the decode side.
    Prefilling(SequenceId, Option<ReservedPages>),
    /// Landed, with what the prefill side had told.
    Landed(SequenceId, Box<Heard>),
}

struct World {
    rng: Rng,
    prefill: Rig,
    decode: Rig,
    requests: BTreeMap<u64, Request>,
    /// Broken transfers whose peer may still write.
    fencing: Vec<SequenceId>,
    next: u64,
    operations: u64,
    finished: u64,
    cancelled: u64,
}

fn world(seed: u64) -> World {
    let mut rng = Rng(seed);
    let page_size = [1, 3, 4][rng.below(3) as usize];
    let mut setting = |pages| SchedulerConfig {
        token_budget: 4 + rng.below(20) as usize,
        max_chunk: 1 + rng.below(4) as usize,
        max_batch: 1 + rng.below(8) as usize,
        max_prompt_rows: 1 + rng.below(12) as usize,
        max_queued: 6,
        headroom_percent: [0, 10, 30][rng.below(3) as usize],
        decode_every: 1 + rng.below(4),
        prefix_cache: rng.below(4) != 0,
        max_pages_awaiting_grant: 8,
        ..config(pages, page_size)
    };
    let (prefill, decode) = (setting(48 / page_size), setting(64 / page_size));
    World {
        prefill: Rig::new(prefill),
        decode: Rig::new(decode),
        rng,
        requests: BTreeMap::new(),
        fencing: Vec::new(),
        next: 0,
        operations: 0,
        finished: 0,
        cancelled: 0,
    }
}

impl World {
    fn operate(&mut self) {
        self.operations += 1;
        match self.rng.below(20) {
            0 | 1 => self.arrive(),
            2 => self.cancel(),
            3 => self.reserve(),
            4 => self.break_transfer(),
            5 => self.fence(),
            6 => self.pause(),
            7..=12 => self.step(true),
            _ => self.step(false),
        }
        self.prefill.check();
        self.decode.check();
    }

    fn arrive(&mut self) {
        // Few different prompts with common prefixes, so that there are prefix hits.
        let length = 1 + self.rng.below(24);
        let text = prompt(u64::from(self.rng.below(4)), length);
        let params = SamplingParams {
            choices: [1, 1, 1, 2, 3][self.rng.below(5) as usize],
            ignore_eos: self.rng.below(2) == 0,
            prompt_logprobs: [None, None, Some(3)][self.rng.below(3) as usize],
            ..sampled(1 + self.rng.below(20), self.next)
        };
        let is_split = params.max_tokens > 1 && self.rng.below(2) == 0;
        let spec = spec(self.decode.now, &text, params);
        let place = if is_split {
            let id = self.prefill.try_submit(spec.clone(), AfterPrompt::HandOff);
            id.map(|id| Place::Prefilling(id, None))
        } else {
            let id = self.decode.try_submit(spec.clone(), AfterPrompt::Decode);
            id.map(Place::Local)
        };
        if let Ok(place) = place {
            self.requests.insert(self.next, Request { spec, place });
            self.next += 1;
        }
    }

    fn any(&mut self) -> Option<u64> {
        let at = self.rng.below((self.requests.len() as u32).max(1));
        self.requests.keys().nth(at as usize).copied()
    }

    fn cancel(&mut self) {
        // Seldom, so that most requests finish.
        if self.rng.below(3) != 0 {
            return;
        }
        let Some(request) = self.any().and_then(|at| self.requests.remove(&at)) else {
            return;
        };
        self.cancelled += 1;
        match request.place {
            Place::Local(id) | Place::Landed(id, _) => match self.rng.below(2) {
                0 => self.decode.scheduler.release(id),
                _ => self.decode.scheduler.reader_gone(id),
            },
            Place::Prefilling(id, reserved) => {
                self.prefill.scheduler.reader_gone(id);
                self.prefill.scheduler.release(id);
                if let Some(reserved) = reserved {
                    self.decode.scheduler.release(reserved.id);
                }
            }
        }
    }

    fn reserve(&mut self) {
        let Some(at) = self.any() else {
            return;
        };
        let request = self.requests.get_mut(&at).expect("there");
        let Place::Prefilling(id, reserved @ None) = &mut request.place else {
            return;
        };
        if self.prefill.heard[id].scheduled.is_none() {
            return;
        }
        match self.decode.try_reserve(request.spec.clone()) {
            Ok(pages) => {
                self.prefill.scheduler.set_granted(*id, true);
                *reserved = Some(pages);
            }
            // The router would end it: no decode worker can ever take it.
            Err(SequenceError::NeverFits { .. }) => {
                self.prefill.scheduler.release(*id);
                self.requests.remove(&at);
            }
            Err(SequenceError::NoRoom { .. } | SequenceError::QueueFull { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// The transfer breaks; prefill keeps its pages for another grant.
    fn break_transfer(&mut self) {
        let Some(at) = self.any() else {
            return;
        };
        let request = self.requests.get_mut(&at).expect("there");
        if let Place::Prefilling(_, reserved) = &mut request.place
            && let Some(broken) = reserved.take()
        {
            self.decode.scheduler.quarantine(broken.id);
            self.fencing.push(broken.id);
        }
    }

    fn fence(&mut self) {
        if !self.fencing.is_empty() {
            let at = self.rng.below(self.fencing.len() as u32) as usize;
            let id = self.fencing.swap_remove(at);
            self.decode.scheduler.release(id);
        }
    }

    fn pause(&mut self) {
        let paused = self.rng.below(3) == 0;
        let Some(at) = self.any() else {
            return;
        };
        if let Place::Local(id) | Place::Landed(id, _) = &self.requests[&at].place {
            self.decode.scheduler.set_paused(*id, paused);
        }
    }

    fn step(&mut self, is_decode: bool) {
        if is_decode {
            self.decode.step();
        } else {
            self.prefill.step();
        }
        self.commit();
        self.collect();
    }

    /// Lands what prefill has finished and decode has room for.
    fn commit(&mut self) {
        for request in self.requests.values_mut() {
            let Place::Prefilling(id, Some(reserved)) = &request.place else {
                continue;
            };
            let first = &self.prefill.heard[id];
            let Some(running) = &first.prompt_done else {
                continue;
            };
            let sources =
                &first.scheduled.as_ref().expect("before")[reserved.reused_pages as usize..];
            for (source, (target, _)) in sources.iter().zip(&reserved.slots) {
                let content = self.prefill.memory.read(*source);
                self.decode.memory.write(*target, content);
            }
            self.decode
                .scheduler
                .land(reserved.id, &first.tokens, running)
                .expect("lands");
            self.decode.listen();
            let first = Box::new(first.clone());
            self.prefill.scheduler.release(*id);
            request.place = Place::Landed(reserved.id, first);
        }
    }

    fn collect(&mut self) {
        let mut over = Vec::new();
        for (at, request) in &self.requests {
            let (id, first) = match &request.place {
                Place::Local(id) => (id, None),
                Place::Landed(id, first) => (id, Some(first)),
                Place::Prefilling(..) => continue,
            };
            let heard = &self.decode.heard[id];
            assert_eq!(heard.failed, None);
            if heard.done.is_none() {
                continue;
            }
            let params = &request.spec.params;
            let limit = params
                .max_tokens
                .min(CONTEXT - request.spec.prompt.len() as u32);
            let got: Vec<Vec<u32>> = (0..params.choices)
                .map(|choice| {
                    let first = first.and_then(|first| first.completions.get(&choice));
                    let rest = heard.completions.get(&choice);
                    first.into_iter().chain(rest).flatten().copied().collect()
                })
                .collect();
            assert_eq!(got, expected(&request.spec.prompt, params, limit, &[]));
            // Whoever computed the prompt told them, and nobody else.
            let (told, silent) = match first {
                Some(first) => (&first.prompt[..], &heard.prompt[..]),
                None => (&heard.prompt[..], &[][..]),
            };
            assert_eq!(told, expected_prompt(&request.spec.prompt, params));
            assert!(silent.is_empty());
            over.push(*at);
        }
        for at in over {
            self.finished += 1;
            self.requests.remove(&at);
        }
    }

    /// Lets everything end.
    fn wind_up(&mut self) {
        for round in 0..100_000 {
            while !self.fencing.is_empty() {
                self.fence();
            }
            let ids: Vec<_> = self.decode.scheduler.groups.keys().copied().collect();
            for id in ids {
                self.decode.scheduler.set_paused(id, false);
            }
            self.step(true);
            self.step(false);
            self.reserve();
            if self.requests.is_empty() {
                break;
            }
            assert!(round < 99_999, "{} requests never end", self.requests.len());
        }
        self.prefill.assert_idle();
        self.decode.assert_idle();
    }
}

#[test]
fn random_requests_over_both_workers_finish_exactly() {
    let (mut finished, mut cancelled, mut preempted, mut hits, mut evicted) = (0, 0, 0, 0, 0);
    for seed in 0..128 {
        println!("seed {seed}");
        let mut world = world(seed);
        for _ in 0..8_000 {
            world.operate();
        }
        world.wind_up();
        finished += world.finished;
        cancelled += world.cancelled;
        for rig in [&world.prefill, &world.decode] {
            let load = rig.scheduler.snapshot();
            preempted += load.preemptions;
            hits += load.prefix_hit_tokens;
            evicted += load.evicted;
        }
    }
    println!("{finished} {cancelled} {preempted} {hits} {evicted}");
    assert!(finished > 10_000 && cancelled > 1_000);
    assert!(preempted > 1_000 && hits > 1_000 && evicted > 1_000);
}

#[test]
fn smp_01_a_seeded_request_is_the_same_among_any_neighbours() {
    let text = prompt(77, 24);
    let params = SamplingParams {
        ignore_eos: false,
        ..sampled(16, 42)
    };
    let reference = expected(&text, &params, 16, &[]);
    for seed in 0..20 {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        for (pages, neighbours) in [(200, 0), (200, 1), (200, 7), (8, 7)] {
            let mut rig = Rig::new(config(pages, 16));
            let mut id = None;
            for n in 0..neighbours {
                if n == rng.below(neighbours) && id.is_none() {
                    id = Some(rig.submit(&text, params.clone()));
                }
                let length = 1 + rng.below(60);
                rig.submit(
                    &prompt(seed * 10 + u64::from(n), length),
                    sampled(40, u64::from(n)),
                );
                for _ in 0..rng.below(4) {
                    rig.step();
                }
            }
            let id = id.unwrap_or_else(|| rig.submit(&text, params.clone()));
            rig.run_to_end();
            assert_eq!(
                rig.completions(id),
                reference,
                "{pages} pages, {neighbours} neighbours"
            );
            rig.assert_idle();
        }
    }
}

#[test]
fn smp_01_a_seeded_request_is_the_same_after_a_preemption() {
    let text = prompt(77, 24);
    let params = sampled(16, 42);
    let reference = expected(&text, &params, 16, &[]);
    for seed in 0..20 {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        // Two older neighbours fill the pool before it has ended.
        let mut rig = Rig::new(config(10, 16));
        for n in 0..2 {
            let length = 40 + rng.below(5);
            rig.submit(&prompt(seed * 10 + n, length), sampled(40, n));
        }
        while rig
            .scheduler
            .groups
            .values()
            .any(|group| group.told < Told::PromptDone)
        {
            assert!(rig.step());
        }
        let id = rig.submit(&text, params.clone());
        rig.run_to_end();
        assert!(rig.heard[&id].done >= Some(1), "{:?}", rig.heard[&id].done);
        assert_eq!(rig.completions(id), reference);
        rig.assert_idle();
    }
}
