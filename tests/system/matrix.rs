//! Every fault of every process (etcd among them) in every phase of a request: nothing is lost, changed or
//! kept.
//!
//! The cases are the product of three tables, over both transports. The long run takes them all; otherwise
//! a seed (`BATON_SEED`) chooses one fault and one transport for each victim and phase.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use baton_model_file::fixtures::Random;
use baton_proto::v1::{GenerateRequest, WorkerLoad};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::answer::{Answer, Essence};
use crate::client::{Client, ledger};
use crate::cluster::{Cluster, ETCD, Fault, ROUTER};
use crate::models::{by_ids, endless, slow_model, tiny_prompt, with};
use crate::process::{PATIENCE, soak};

/// A case whose phase is over before it is seen is tried so often.
const TRIES: usize = 6;
/// Longest time until workers are rid of what a lost router left with them; it takes two seconds or so.
const ABANDONED: Duration = Duration::from_secs(30);
/// A stream has begun for good.
const BEGUN: usize = 3;
const PROMPT: usize = 900;
const TOKENS: u32 = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Router,
    Prefill,
    Decode,
    Etcd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Queued,
    Prefilling,
    Transferring,
    Decoding,
    Resuming,
}

const VICTIMS: [Victim; 4] = [
    Victim::Router,
    Victim::Prefill,
    Victim::Decode,
    Victim::Etcd,
];
const FAULTS: [Fault; 3] = [Fault::Kill, Fault::Stop, Fault::Restart];
const PHASES: [Phase; 5] = [
    Phase::Queued,
    Phase::Prefilling,
    Phase::Transferring,
    Phase::Decoding,
    Phase::Resuming,
];

#[derive(Debug, Clone, Copy)]
struct Case {
    victim: Victim,
    fault: Fault,
    phase: Phase,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            victim,
            fault,
            phase,
        } = self;
        write!(f, "{fault:?} of {victim:?} while {phase:?}")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_in_every_phase_over_shared_memory() {
    run("shm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_in_every_phase_over_tcp() {
    run("tcp").await;
}

/// The cases that this run takes over this transport.
fn cases(transport: &str, seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    let mut cases = Vec::new();
    for victim in VICTIMS {
        for phase in PHASES {
            let chosen = FAULTS[random.below(FAULTS.len())];
            let over = ["shm", "tcp"][random.below(2)];
            for fault in FAULTS {
                if soak() || (fault == chosen && over == transport) {
                    cases.push(Case {
                        victim,
                        fault,
                        phase,
                    });
                }
            }
        }
    }
    cases
}

async fn run(transport: &str) {
    let seed = std::env::var("BATON_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let cases = cases(transport, seed);
    println!("{transport}: seed {seed}, {} cases", cases.len());
    let folder = tempfile::tempdir().expect("a folder");
    let begin = Instant::now();
    // Room for one prompt at a time, so that others queue; small chunks, so that prefill lasts.
    let prefill = ["--transport", transport, "--pages", "72"];
    let prefill = [&prefill[..], &["--token-budget", "64"]].concat();
    let decode = ["--transport", transport, "--pages", "512"];
    let mut cluster = Cluster::start(&slow_model(folder.path()), &prefill, &decode).await;
    let kinds = kinds(&cluster.client).await;
    println!("{transport}: ready after {:?}", begin.elapsed());
    for (number, case) in cases.into_iter().enumerate() {
        let begin = Instant::now();
        let mut tries = 0;
        let found = loop {
            tries += 1;
            assert!(tries <= TRIES, "{transport}: {case}: nobody came to be so");
            let salt = format!("{number} {tries}");
            let found = attempt(&mut cluster, &kinds, case, number, &salt).await;
            cluster.recover().await;
            if let Some(found) = found {
                break found;
            }
        };
        let elapsed = begin.elapsed();
        println!("{transport}: {case}: {found}; {tries} tries, {elapsed:?}");
    }
}

/// A request and what it gets when nothing happens.
struct Kind {
    request: GenerateRequest,
    expected: Essence,
}

/// Requests that differ in what a resumed one must keep.
async fn kinds(client: &Client) -> Vec<Kind> {
    let greedy = with(endless(tiny_prompt(1, PROMPT), TOKENS), |sampling| {
        sampling.logprobs = Some(2);
        sampling.prompt_logprobs = Some(1);
    });
    let sampled = with(endless(tiny_prompt(2, PROMPT), TOKENS), |sampling| {
        sampling.temperature = Some(0.8);
        sampling.seed = Some(77);
        sampling.n = Some(2);
        sampling.presence_penalty = 0.5;
        sampling.frequency_penalty = 0.25;
        sampling.logprobs = Some(0);
    });
    let until = with(by_ids(tiny_prompt(3, PROMPT), TOKENS), |sampling| {
        sampling.temperature = Some(1.0);
        sampling.seed = Some(5);
        sampling.min_tokens = TOKENS / 2;
    });
    let mut stopped = until.clone();
    let whole = client.generate(until).await.expect("undisturbed");
    if let Some(stop) = late_part(whole.text()) {
        stopped = with(stopped, |sampling| sampling.stop = vec![stop]);
    }
    let mut kinds = Vec::new();
    for request in [greedy, sampled, stopped] {
        let answer = client.generate(request.clone()).await.expect("undisturbed");
        kinds.push(Kind {
            request,
            expected: answer.essence(),
        });
    }
    client.assert_idle().await;
    kinds
}

/// Some characters of the text's second half that its first half does not have.
fn late_part(text: &str) -> Option<String> {
    let characters: Vec<(usize, char)> = text.char_indices().collect();
    let half = characters.len() / 2;
    (half..characters.len().saturating_sub(3)).find_map(|at| {
        let part: String = characters[at..at + 3].iter().map(|one| one.1).collect();
        (text.find(&part) == Some(characters[at].0)).then_some(part)
    })
}

/// A request that runs by itself.
struct Running {
    /// Completion tokens received so far.
    tokens: Arc<AtomicUsize>,
    task: JoinHandle<Result<Answer, Status>>,
}

impl Running {
    fn send(client: &Client, request: GenerateRequest) -> Self {
        let mut client = client.inference();
        let tokens = Arc::<AtomicUsize>::default();
        let counted = tokens.clone();
        let task = tokio::spawn(async move {
            let mut events = client.generate(request).await?.into_inner();
            let mut answer = Answer::default();
            while let Some(response) = events.message().await? {
                answer.take(response);
                let count = answer.choices.values().map(|choice| choice.token_ids.len());
                counted.store(count.sum(), Ordering::Relaxed);
            }
            assert!(answer.receipt.is_some(), "an end without a final event");
            Ok(answer)
        });
        Self { tokens, task }
    }

    fn begun(&self) -> bool {
        self.tokens.load(Ordering::Relaxed) >= BEGUN
    }

    async fn end(self) -> Result<Answer, Status> {
        let end = tokio::time::timeout(PATIENCE, self.task).await;
        end.expect("an end in time")
            .expect("every event is in order")
    }
}

/// Where a request was found.
#[derive(Debug, Clone, Copy, Default)]
struct Spot {
    prefill: Option<&'static str>,
    decode: Option<&'static str>,
}

impl Spot {
    /// Where some request is in this phase, if any is.
    fn find(phase: Phase, loads: &[(&'static str, WorkerLoad)], begun: bool) -> Option<Self> {
        let at = |role: &str, wanted: &dyn Fn(&WorkerLoad) -> bool| {
            let mut of_role = loads.iter().filter(|(name, _)| name.starts_with(role));
            of_role
                .find(|(_, load)| wanted(load))
                .map(|(name, _)| *name)
        };
        let computing = at("prefill", &|load| {
            ledger(load).live > 0 && load.queued_tokens > 0
        });
        let granted = at("decode", &|load| ledger(load).granted > 0);
        let decoding = at("decode", &|load| load.running > 0);
        let spot = Self {
            prefill: computing,
            decode: granted.or(decoding),
        };
        match phase {
            Phase::Queued => at("prefill", &|load| load.queued > 0).map(|name| Self {
                prefill: Some(name),
                ..spot
            }),
            Phase::Prefilling => computing.map(|_| spot),
            Phase::Transferring => granted.map(|_| spot),
            Phase::Decoding => (begun && decoding.is_some()).then_some(Self {
                decode: decoding,
                ..spot
            }),
            Phase::Resuming => computing.or(granted).or(decoding).map(|_| spot),
        }
    }

    fn victim(self, victim: Victim) -> &'static str {
        match victim {
            Victim::Router => ROUTER,
            Victim::Etcd => ETCD,
            Victim::Prefill => self.prefill.unwrap_or("prefill-0"),
            Victim::Decode => self.decode.unwrap_or("decode-0"),
        }
    }
}

/// Looks at the workers until a request is in this phase, or all are over.
async fn when(cluster: &Cluster, phase: Phase, requests: &[Running]) -> Option<Spot> {
    loop {
        let loads = cluster.loads().await;
        // Asked after the loads were: what runs now ran then.
        let running = requests.iter().filter(|one| !one.task.is_finished());
        let begun: Vec<bool> = running.map(Running::begun).collect();
        if begun.is_empty() {
            return None;
        }
        let found = Spot::find(phase, &loads, begun.contains(&true));
        if found.is_some() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Sends requests, hits the victim, and compares what comes. None if the phase was never seen.
async fn attempt(
    cluster: &mut Cluster,
    kinds: &[Kind],
    case: Case,
    number: usize,
    salt: &str,
) -> Option<String> {
    // Each prefill worker has room for one.
    let count = if case.phase == Phase::Queued { 4 } else { 1 };
    let chosen: Vec<&Kind> = (0..count)
        .map(|index| &kinds[(number + index) % kinds.len()])
        .collect();
    let requests: Vec<Running> = (chosen.iter().enumerate())
        .map(|(index, kind)| {
            let mut request = kind.request.clone();
            request.cache_salt = format!("{salt} {index}");
            Running::send(&cluster.client, request)
        })
        .collect();
    let victim = strike(cluster, case, &requests).await;
    if case.victim == Victim::Router && victim.is_some() {
        cluster.workers_idle(ABANDONED).await;
        cluster.mend(ROUTER).await;
    }
    let mut attempts = 0;
    let mut failed = Vec::new();
    for (request, kind) in requests.into_iter().zip(chosen) {
        match request.end().await {
            Ok(answer) => {
                assert_eq!(answer.essence(), kind.expected, "{case}");
                attempts = attempts.max(answer.receipt().attempts.len());
            }
            Err(status) => failed.push(status),
        }
    }
    // A client whose connection breaks under an answer is told so by its own end, as UNKNOWN.
    let cut_off = |one: &Status| matches!(one.code(), Code::Unavailable | Code::Unknown);
    let excused = case.victim == Victim::Router && failed.iter().all(cut_off);
    assert!(failed.is_empty() || excused, "{case}: {failed:?}");
    let victim = victim?;
    // A killed decode worker takes its sequences along.
    let lost = case.victim == Victim::Decode && case.phase == Phase::Decoding;
    assert!(!lost || attempts > 1, "{case}: it was not noticed");
    let failed = failed.len();
    Some(format!("{victim}, {attempts} attempts, {failed} cut off"))
}

/// Hits the victim when a request is in the wanted phase; its name, if that came to be.
async fn strike(cluster: &mut Cluster, case: Case, requests: &[Running]) -> Option<&'static str> {
    let mut first = None;
    if case.phase == Phase::Resuming {
        let lost = when(cluster, Phase::Decoding, requests).await?.decode?;
        cluster.hit(lost, Fault::Kill).await;
        first = Some(lost);
    }
    let spot = when(cluster, case.phase, requests).await;
    let mut victim = None;
    if let Some(spot) = spot {
        let name = spot.victim(case.victim);
        // Nobody but the one who is gone already was doing anything with it.
        if Some(name) != first {
            cluster.hit(name, case.fault).await;
            victim = Some(name);
        }
    }
    // The pool has two: with both hit, the first must come back.
    if let Some(first) = first.filter(|_| case.victim == Victim::Decode) {
        cluster.mend(first).await;
    }
    victim
}
