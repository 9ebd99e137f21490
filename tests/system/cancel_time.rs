//! Promise 4, measured: from the moment a caller goes away to the moment every page is back, by the phase
//! in which its request was.
//!
//! The long run takes enough of them for percentiles, on the default model as well; docs/benchmarks.md has
//! the figures.

use std::path::Path;
use std::time::{Duration, Instant};

use baton_proto::v1::{GenerateRequest, GenerateResponse, WorkerLoad};
use tonic::Streaming;

use crate::client::{Client, WorkerClient, is_idle, ledger};
use crate::models::{default_model, endless, slow_model, tiny_prompt};
use crate::process::{Process, soak};
use crate::service::Roles;

/// Pages are back within this, many times longer than it takes.
const LIMIT: Duration = Duration::from_secs(20);
/// Tokens of a prompt that computes for long enough to be met half way.
const PROMPT: usize = 1000;
/// Nobody gets so far.
const TOKENS: u32 = 2000;
/// Pages in which one of these sequences has room to its end, and two have not.
const TIGHT: &str = "44";
const TIGHT_PROMPT: usize = 160;
const TIGHT_TOKENS: u32 = 500;
/// Cancels in each phase on the default model, over either transport: all of them take minutes.
const ROUNDS: u64 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Queued,
    Prefilling,
    Transferring,
    Landed,
    Decoding,
    Preempted,
}

const ROOMY: [Phase; 5] = [
    Phase::Queued,
    Phase::Prefilling,
    Phase::Transferring,
    Phase::Landed,
    Phase::Decoding,
];

/// A router and one worker of each role.
struct Place {
    client: Client,
    prefill: WorkerClient,
    decode: WorkerClient,
    _processes: [Process; 3],
    _roles: Roles,
}

impl Place {
    async fn start(model: &Path, transport: &str, decode_pages: &str) -> Self {
        let roles = Roles::new(model);
        let router = roles.router(&[]);
        // Room for one long prompt, so that the next one queues.
        let flags = ["--transport", transport, "--pages", "66"];
        let prefill = roles.worker("prefill", &router, &flags);
        let flags = ["--transport", transport, "--pages", decode_pages];
        let decode = roles.worker("decode", &router, &flags);
        let client = Client::connect(router.address()).await;
        client.until_ready(2).await;
        Self {
            client,
            prefill: WorkerClient::connect(prefill.address()).await,
            decode: WorkerClient::connect(decode.address()).await,
            _processes: [prefill, decode, router],
            _roles: roles,
        }
    }

    /// Looks at both workers, every millisecond, until they are as wanted.
    async fn when(&self, what: &str, wanted: impl Fn(&WorkerLoad, &WorkerLoad) -> bool) {
        let begin = Instant::now();
        loop {
            let (prefill, decode) = tokio::join!(self.prefill.load(), self.decode.load());
            if wanted(&prefill, &decode) {
                return;
            }
            assert!(
                begin.elapsed() < LIMIT,
                "not {what}: {prefill:?} {decode:?}"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn idle(&self) {
        self.when("idle", |prefill, decode| {
            is_idle(prefill) && is_idle(decode)
        })
        .await;
    }

    /// Opens a request and leaves it in this phase: how long what it held took to come back.
    async fn cancel(&self, phase: Phase, seed: u64) -> Duration {
        let mut others = Vec::new();
        if phase == Phase::Queued {
            let other = request(seed ^ 1 << 32, PROMPT, TOKENS);
            others.push(self.client.open(other).await);
            self.when("computing", |prefill, _| ledger(prefill).live > 0)
                .await;
        }
        let before = self.decode.load().await.counters["preemptions"];
        let (prompt, tokens) = match phase {
            Phase::Preempted => (TIGHT_PROMPT, TIGHT_TOKENS),
            _ => (PROMPT, TOKENS),
        };
        let mut events = self.client.open(request(seed, prompt, tokens)).await;
        if phase == Phase::Preempted {
            let other = request(seed ^ 1 << 32, prompt, tokens);
            others.push(self.client.open(other).await);
        }
        let what = format!("{phase:?}");
        match phase {
            Phase::Queued => self.when(&what, |prefill, _| prefill.queued > 0).await,
            Phase::Prefilling => {
                self.when(&what, |prefill, _| {
                    ledger(prefill).live > 0 && prefill.queued_tokens > 0
                })
                .await;
            }
            Phase::Transferring => {
                self.when(&what, |_, decode| ledger(decode).granted > 0)
                    .await;
            }
            Phase::Landed => {
                self.when(&what, |_, decode| {
                    ledger(decode).granted == 0 && ledger(decode).live > 0
                })
                .await;
            }
            Phase::Decoding => read(&mut events, 5).await,
            Phase::Preempted => {
                // Its stream is read, or it would wait for its reader.
                let all = others.iter_mut().chain([&mut events]);
                let reading = futures::future::join_all(all.map(|one| read(one, usize::MAX)));
                let preempted = self.when(&what, |_, decode| {
                    decode.counters["preemptions"] > before && decode.queued > 0
                });
                tokio::select! {
                    () = preempted => {}
                    _ = reading => panic!("both were done first"),
                }
            }
        }
        let begin = Instant::now();
        drop(events);
        if phase == Phase::Queued {
            self.when("gone from the queue", |prefill, _| prefill.queued == 0)
                .await;
        } else {
            drop(std::mem::take(&mut others));
            self.idle().await;
        }
        let took = begin.elapsed();
        drop(others);
        self.idle().await;
        took
    }

    /// Measures cancels in these phases and prints them.
    async fn measure(&self, what: &str, phases: &[Phase], rounds: u64) {
        for phase in phases {
            let mut times = Vec::new();
            for round in 0..rounds {
                // No prompt twice, or its pages would be there already.
                let seed = (*phase as u64) << 16 | round;
                times.push(self.cancel(*phase, seed).await);
            }
            times.sort_unstable();
            let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
            println!(
                "{what}: {phase:?}: {} cancels, pages back after {:.1?} (p50), {:.1?} (p99)",
                times.len(),
                at(0.5),
                at(0.99)
            );
        }
        self.client.assert_idle().await;
    }
}

fn request(seed: u64, prompt: usize, tokens: u32) -> GenerateRequest {
    let mut request = endless(tiny_prompt(seed, prompt), tokens);
    request.cache_salt = format!("{seed}");
    request
}

/// Takes so many events, or all.
async fn read(events: &mut Streaming<GenerateResponse>, count: usize) {
    let mut taken = 0;
    while taken < count && events.message().await.expect("running").is_some() {
        taken += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_in_any_phase_gives_the_pages_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    let rounds = if soak() { 50 } else { 2 };
    for transport in ["shm", "tcp"] {
        let what = format!("small model, {transport}");
        let place = Place::start(&model, transport, "512").await;
        place.measure(&what, &ROOMY, rounds).await;
        drop(place);
        let place = Place::start(&model, transport, TIGHT).await;
        place.measure(&what, &[Phase::Preempted], rounds).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes; `cargo test --release -- --ignored` makes it"]
async fn cancel_times_of_the_default_model() {
    for transport in ["shm", "tcp"] {
        let what = format!("default model, {transport}");
        let place = Place::start(&default_model(), transport, "512").await;
        place.measure(&what, &ROOMY, ROUNDS).await;
        drop(place);
        let place = Place::start(&default_model(), transport, TIGHT).await;
        place.measure(&what, &[Phase::Preempted], ROUNDS).await;
    }
}
