//! The load: clients that send requests all the time, compare every answer and go to the other router when
//! theirs dies. It knows nothing of faults but what a load balancer knows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use baton_model_file::fixtures::Random;
use baton_proto::v1::GenerateRequest;
use tonic::Status;

use super::figures::Tally;
use super::fleet::{Fleet, History, Role};
use super::mix;
use crate::answer::Answer;
use crate::client::Client;
use crate::process::PATIENCE;

/// Clients, each with one request at a time.
const CLIENTS: usize = 6;
/// Longest pause of a client between two requests.
const PAUSE_MS: usize = 120;
/// Times that a client may lose its router during one request.
const ROUTERS_LOST: usize = 10;
/// Runs of a reference until nothing disturbs it.
const REFERENCE_RUNS: usize = 5;

/// A request and its undisturbed answer.
type Known = (GenerateRequest, Answer);

pub(super) struct Load {
    fleet: Arc<Fleet>,
    routers: Vec<(usize, Client)>,
    known: Vec<Known>,
    pub(super) tally: Mutex<Tally>,
    stop: AtomicBool,
    salts: AtomicU64,
}

/// How one call ended.
enum Outcome {
    Answered(Box<Answer>, Gaps),
    /// Before any event.
    Refused(Status),
    /// With what had come so far.
    Broken(Status, Box<Answer>),
}

/// Longest times without an event.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gaps {
    /// Until the first token.
    pub(super) before: Duration,
    /// From then on.
    pub(super) after: Duration,
}

impl Gaps {
    /// The longer of both.
    pub(super) fn longest(self) -> Duration {
        self.before.max(self.after)
    }
}

impl Load {
    /// Connects and computes the references.
    pub(super) async fn prepare(fleet: &Arc<Fleet>, seed: u64) -> Arc<Self> {
        let mut routers = Vec::new();
        for router in fleet.of(Role::Router) {
            let address = fleet.members[router].address();
            routers.push((router, Client::connect(&address).await));
        }
        let client = &routers[0].1;
        let requests = mix::requests(seed).into_iter().enumerate();
        let known = requests.map(|(index, request)| async move {
            let answer = reference(client, &request).await;
            if !mix::wants_stop(index) {
                return (request, answer);
            }
            let request = mix::stopped(request, &answer);
            let answer = reference(client, &request).await;
            (request, answer)
        });
        Arc::new(Self {
            known: futures::future::join_all(known).await,
            fleet: fleet.clone(),
            routers,
            tally: Mutex::default(),
            stop: AtomicBool::new(false),
            salts: AtomicU64::new(0),
        })
    }

    /// Sends until told to end.
    pub(super) async fn run(self: &Arc<Self>, seed: u64) {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let random = Random::named(seed, &format!("client {client}"));
                tokio::spawn(self.clone().client(random))
            })
            .collect();
        for client in clients {
            client.await.expect("clients do not fail");
        }
    }

    /// Tells all clients to end after the request that they have.
    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    async fn client(self: Arc<Self>, mut random: Random) {
        while !self.stop.load(Ordering::Relaxed) {
            let index = random.below(self.known.len());
            let router = random.below(self.routers.len());
            // Half of them find their prompt in caches, half of them do not.
            let salted = random.below(2) == 0;
            // A task of its own: whatever it finds wrong with its stream ends this request alone.
            let request = tokio::spawn(self.clone().request(index, router, salted));
            if let Err(error) = request.await {
                let what = format!("request {index} got a wrong stream: {error}");
                self.fleet.violated(what);
            }
            let pause = Duration::from_millis(random.below(PAUSE_MS) as u64);
            tokio::time::sleep(pause).await;
        }
    }

    /// One request to its end, at the other router if need be.
    async fn request(self: Arc<Self>, index: usize, first: usize, salted: bool) {
        let (mut request, expected) = self.known[index].clone();
        if salted {
            let salt = self.salts.fetch_add(1, Ordering::Relaxed);
            request.cache_salt = format!("salt {salt}");
        }
        self.note(|tally| tally.requests += 1);
        let mut router = first;
        for _ in 0..ROUTERS_LOST {
            if !self.fleet.is_calm(self.routers[router].0) {
                router = (router + 1) % self.routers.len();
            }
            let (member, client) = &self.routers[router];
            let history = || self.fleet.members[*member].history();
            let before = history();
            let call = tokio::time::timeout(PATIENCE, call(client, request.clone())).await;
            let Ok(outcome) = call else {
                let what = format!("request {index} has no end within {PATIENCE:?}");
                return self.fleet.violated(what);
            };
            match outcome {
                Outcome::Answered(answer, gaps) => {
                    return self.answered(index, &answer, &expected, gaps, before == history());
                }
                Outcome::Refused(status) => {
                    if !went_away(before, history()) {
                        return self.failed(index, &status);
                    }
                    self.note(|tally| tally.refused += 1);
                }
                Outcome::Broken(status, answer) => {
                    self.check_part(index, &answer, &expected);
                    if history().kills == before.kills {
                        return self.failed(index, &status);
                    }
                    self.note(|tally| tally.cut += 1);
                }
            }
            router = (router + 1) % self.routers.len();
        }
        self.fleet
            .violated(format!("request {index} found no router"));
    }

    fn failed(&self, index: usize, status: &Status) {
        self.note(|tally| tally.failed += 1);
        self.fleet
            .violated(format!("request {index} failed: {status:?}"));
    }

    fn answered(
        &self,
        index: usize,
        answer: &Answer,
        expected: &Answer,
        gaps: Gaps,
        router_was_calm: bool,
    ) {
        if answer.essence() != expected.essence() {
            self.note(|tally| tally.changed += 1);
            self.fleet.violated(format!(
                "request {index} got another answer:\n{:?}\ninstead of\n{:?}\n{:?}",
                answer.choices,
                expected.choices,
                answer.receipt()
            ));
        }
        self.note(|tally| tally.book(gaps, answer.receipt(), router_was_calm));
    }

    /// What came before a break must be the beginning of the answer.
    fn check_part(&self, index: usize, part: &Answer, expected: &Answer) {
        for (number, choice) in &part.choices {
            let whole = &expected.choices[number];
            if !whole.token_ids.starts_with(&choice.token_ids)
                || !whole.text.starts_with(&choice.text)
                || !whole.logprobs.starts_with(&choice.logprobs)
            {
                self.note(|tally| tally.changed += 1);
                self.fleet.violated(format!(
                    "request {index} got another beginning: {choice:?}\ninstead of {whole:?}"
                ));
            }
        }
    }

    fn note(&self, change: impl FnOnce(&mut Tally)) {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Whether the router was killed or left since.
fn went_away(before: History, now: History) -> bool {
    (before.kills, before.drains) != (now.kills, now.drains)
}

async fn reference(client: &Client, request: &GenerateRequest) -> Answer {
    for _ in 0..REFERENCE_RUNS {
        let answer = client.generate(request.clone()).await;
        let answer = answer.expect("a reference");
        let attempts = &answer.receipt().attempts;
        if attempts.iter().all(|attempt| attempt.failure.is_empty()) {
            return answer;
        }
    }
    panic!("references are disturbed before any fault");
}

async fn call(client: &Client, request: GenerateRequest) -> Outcome {
    let mut last = Instant::now();
    let (mut answer, mut gaps) = (Box::<Answer>::default(), Gaps::default());
    let mut events = match client.inference().generate(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return Outcome::Refused(status),
    };
    loop {
        match events.message().await {
            Ok(Some(response)) => {
                let gap = std::mem::replace(&mut last, Instant::now()).elapsed();
                let longest = if answer.choices.is_empty() {
                    &mut gaps.before
                } else {
                    &mut gaps.after
                };
                *longest = gap.max(*longest);
                answer.take(response);
            }
            Ok(None) => {
                assert!(answer.receipt.is_some(), "ended well without its end");
                return Outcome::Answered(answer, gaps);
            }
            Err(status) => return Outcome::Broken(status, answer),
        }
    }
}
