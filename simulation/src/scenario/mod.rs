//! What a seed means: a fleet, the requests that it gets and the faults that happen to it. Pure. It must
//! not know how any of it is carried out.

mod etcd;

use std::time::Duration;

use crate::chance::Random;
use crate::network::Death;
pub use etcd::EtcdFault;

/// Everything that a run consists of.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Latencies to draw from, in milliseconds.
    pub latencies: Vec<u64>,
    /// How the router knows of its workers.
    pub known: Known,
    /// Whether all workers have one name.
    pub namesakes: bool,
    /// Tokens per page.
    pub page_size: u32,
    /// Longest prompt that a decode worker prefills by choice.
    pub local_prefill_tokens: u32,
    /// Workers, prefill first.
    pub workers: Vec<Seat>,
    /// Requests by arrival.
    pub requests: Vec<Ask>,
    /// Faults by time.
    pub faults: Vec<Fault>,
}

/// How a router knows of its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It has a list.
    Listed,
    /// They register with it.
    Registered,
    /// They register in etcd, where it reads of them.
    Etcd {
        /// How long a registration outlives its worker.
        lease: Duration,
    },
}

/// A worker and its size.
#[derive(Debug, Clone)]
pub struct Seat {
    /// Decode or prefill.
    pub decodes: bool,
    /// Pages of its pool.
    pub pages: u32,
    /// Most tokens of a chunk.
    pub chunk: usize,
    /// Most sequences in a step.
    pub batch: usize,
    /// Time of a step.
    pub step: Duration,
    /// Time of a token in a step, on top.
    pub token: Duration,
}

/// A request, and how its client behaves.
#[derive(Debug, Clone)]
pub struct Ask {
    /// When it is sent.
    pub at: Duration,
    /// Prompt ids.
    pub prompt: Vec<u32>,
    /// Choices.
    pub choices: u32,
    /// Most tokens of a choice.
    pub max_tokens: u32,
    /// None before so many.
    pub min_tokens: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// Of the sampler.
    pub seed: u64,
    /// Ids that end a choice.
    pub stop_token_ids: Vec<u32>,
    /// Draws a stop string from what would come without it.
    pub stop: Option<u64>,
    /// Alternatives whose log-probabilities are asked for.
    pub logprobs: Option<u32>,
    /// Makes tokens depend on those before.
    pub frequency_penalty: f32,
    /// Time given.
    pub deadline: Duration,
    /// The client hangs up after so many events.
    pub drop_after: Option<u32>,
    /// The client waits so long before each event.
    pub pause: Duration,
}

/// Something that goes wrong.
#[derive(Debug, Clone)]
pub struct Fault {
    /// When.
    pub at: Duration,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong. Workers by their place in the list.
#[derive(Debug, Clone)]
pub enum FaultKind {
    /// A worker dies, and perhaps starts again at its address.
    Kill {
        /// Which.
        worker: usize,
        /// Whether anybody is told.
        death: Death,
        /// When it starts again.
        restart_after: Option<Duration>,
    },
    /// A worker stops, then goes on.
    Freeze {
        /// Which.
        worker: usize,
        /// For how long.
        lasts: Duration,
    },
    /// Nothing passes, then everything does.
    Cut {
        /// One end.
        one: End,
        /// The other.
        other: End,
        /// Only what the first sends is held.
        one_way: bool,
        /// For how long.
        lasts: Duration,
    },
    /// Everything is late.
    Slow {
        /// One end.
        one: End,
        /// The other.
        other: End,
        /// By how much.
        by: Duration,
    },
    /// All connections between two break.
    Reset {
        /// One end.
        one: End,
        /// The other.
        other: End,
    },
    /// The router dies and starts again.
    KillRouter {
        /// Whether anybody is told.
        death: Death,
        /// When it starts again.
        restart_after: Duration,
    },
    /// A worker is asked to end, and starts again when it has.
    Drain {
        /// Which.
        worker: usize,
    },
    /// Something happens to etcd or to what it keeps.
    Etcd(EtcdFault),
}

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The router.
    Router,
    /// A worker.
    Worker(usize),
    /// etcd.
    Etcd,
}

/// Prompts share these many beginnings.
const FAMILIES: u64 = 3;
/// Most requests of a run.
const MOST_REQUESTS: u64 = 10;
/// Most faults of a run.
const MOST_FAULTS: u64 = 7;
/// Requests arrive, and faults begin, in one of these times. Requests take about as long: most faults hit
/// some.
const BUSY_MS: [u64; 3] = [150, 400, 900];
/// Longest prompt and completion.
const MOST_PROMPT: u64 = 160;
const MOST_TOKENS: u32 = 40;
/// Most choices.
const MOST_CHOICES: u32 = 3;

impl Scenario {
    /// The name that a worker goes by.
    pub fn name(&self, worker: usize) -> String {
        if self.namesakes {
            "namesake".to_owned()
        } else {
            format!("w{worker}")
        }
    }

    /// The scenario of a seed; ids of prompts are from 3 to below `vocabulary`.
    pub fn of(seed: u64, vocabulary: u32) -> Self {
        let mut random = Random::named(seed, "scenario");
        let page_size = *random.pick(&[2, 4, 8]);
        let workers = workers(&mut random, page_size);
        let busy_ms = *random.pick(&BUSY_MS);
        let spares = !random.one_in(4);
        let count = random.between(2, MOST_REQUESTS);
        let mut requests: Vec<_> = (0..count)
            .map(|_| ask(&mut random, u64::from(vocabulary), busy_ms))
            .collect();
        requests.sort_by_key(|ask| ask.at);
        let mut faults: Vec<_> = (0..random.between(0, MOST_FAULTS))
            .map(|_| fault(&mut random, &workers, spares, busy_ms))
            .collect();
        // Drawn apart: what a seed means otherwise does not depend on it.
        let apart = Random::named(seed, "etcd");
        let known = etcd::scenario(apart, workers.len(), busy_ms, &mut faults);
        faults.sort_by_key(|fault| fault.at);
        let latencies: &[&[u64]] = &[&[0], &[0, 1], &[0, 0, 0, 1, 2, 5], &[1, 3, 10]];
        let latencies = random.pick(latencies).to_vec();
        let listed = random.one_in(3);
        Self {
            latencies,
            known: known.unwrap_or(if listed {
                Known::Listed
            } else {
                Known::Registered
            }),
            namesakes: random.one_in(6),
            page_size,
            local_prefill_tokens: *random.pick(&[0, 8, 64]),
            workers,
            requests,
            faults,
        }
    }
}

fn workers(random: &mut Random, page_size: u32) -> Vec<Seat> {
    let prefill = random.between(1, 2);
    let decode = random.between(1, 4);
    // Whatever is asked fits, alone.
    let largest = MOST_PROMPT + u64::from(MOST_CHOICES * MOST_TOKENS);
    let mut seat = |decodes| Seat {
        decodes,
        pages: (largest + random.below(3) * largest / 2) as u32 / page_size + MOST_CHOICES + 1,
        chunk: *random.pick(&[4, 16, 64]),
        batch: random.between(2, 8) as usize,
        step: Duration::from_micros(random.between(1000, 25_000)),
        token: Duration::from_micros(random.between(0, 500)),
    };
    let mut seats: Vec<_> = (0..prefill).map(|_| seat(false)).collect();
    seats.extend((0..decode).map(|_| seat(true)));
    seats
}

fn ask(random: &mut Random, vocabulary: u64, busy_ms: u64) -> Ask {
    let family = random.below(FAMILIES);
    let length = *random.pick(&[1, 3, 9, 20, 33, 64, 100, MOST_PROMPT]);
    let shared = length - random.below(length).min(4);
    let mut beginning = Random::named(family, "family");
    let prompt = (0..length)
        .map(|at| {
            let source = if at < shared {
                &mut beginning
            } else {
                &mut *random
            };
            source.between(3, vocabulary - 1) as u32
        })
        .collect();
    let max_tokens = *random.pick(&[1, 2, 5, 12, 24, MOST_TOKENS]);
    let millis = Duration::from_millis;
    Ask {
        at: millis(random.below(busy_ms)),
        prompt,
        choices: *random.pick(&[1, 1, 1, 2, MOST_CHOICES]),
        max_tokens,
        min_tokens: if random.one_in(4) {
            max_tokens.min(3)
        } else {
            0
        },
        temperature: *random.pick(&[0.0, 0.0, 0.8]),
        seed: random.bits(),
        stop_token_ids: if random.one_in(3) {
            (0..12)
                .map(|_| random.between(3, vocabulary - 1) as u32)
                .collect()
        } else {
            Vec::new()
        },
        stop: random.one_in(3).then(|| random.bits()),
        logprobs: random.one_in(3).then(|| random.below(3) as u32),
        frequency_penalty: *random.pick(&[0.0, 0.0, 0.5]),
        deadline: millis(if random.one_in(8) { 300 } else { 60_000 }),
        drop_after: random.one_in(8).then(|| random.below(12) as u32),
        pause: millis(if random.one_in(6) {
            random.between(5, 200)
        } else {
            0
        }),
    }
}

fn fault(random: &mut Random, workers: &[Seat], spares: bool, busy_ms: u64) -> Fault {
    let at = Duration::from_millis(random.below(busy_ms));
    // The last one, which decodes, is often spared: where it is, nothing may fail.
    let spared = workers.len() > 2 && spares;
    let count = workers.len() as u64 - u64::from(spared);
    let worker = random.below(count) as usize;
    let lasts = Duration::from_millis(*random.pick(&[30, 300, 1500, 4000, 20_000]));
    let one = End::Worker(worker);
    let other = match random.below(count + 2) as usize {
        other if other < workers.len() && other != worker => End::Worker(other),
        _ => End::Router,
    };
    let kind = match random.below(11) {
        0..3 => FaultKind::Kill {
            worker,
            death: *random.pick(&[Death::Killed, Death::Killed, Death::Silent]),
            restart_after: (!random.one_in(4)).then(|| lasts / 4),
        },
        3..5 => FaultKind::Freeze { worker, lasts },
        5 => FaultKind::Cut {
            one,
            other,
            one_way: false,
            lasts,
        },
        6 => {
            let (one, other) = if random.one_in(2) {
                (one, other)
            } else {
                (other, one)
            };
            FaultKind::Cut {
                one,
                other,
                one_way: true,
                lasts,
            }
        }
        7 => FaultKind::Slow {
            one,
            other,
            by: Duration::from_millis(random.between(5, 150)),
        },
        8 => FaultKind::Reset { one, other },
        9 if random.one_in(4) => FaultKind::KillRouter {
            death: *random.pick(&[Death::Killed, Death::Silent]),
            restart_after: lasts / 4,
        },
        _ => FaultKind::Drain { worker },
    };
    Fault { at, kind }
}
