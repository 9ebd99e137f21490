//! Decode workers that are lost in the middle of streams: every stream goes on at another worker, or at the
//! same one once it is back, with the tokens, text and log-probabilities of an undisturbed run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use baton_proto::v1::{GenerateRequest, GenerateResponse, WorkerRole};
use futures::future::join_all;
use tonic::Streaming;

use crate::answer::{Answer, Essence};
use crate::client::{Client, WorkerClient, is_idle, ledger};
use crate::models::{endless, slow_model, tiny_prompt, with};
use crate::process::{PATIENCE, Process, soak};
use crate::service::Roles;

/// A router, a prefill worker and two decode workers, each a process of its own. Workers end first.
struct Cluster {
    client: Client,
    decode: BTreeMap<String, Process>,
    prefill: Option<Process>,
    router: Process,
    roles: Roles,
    flags: Vec<String>,
}

impl Cluster {
    /// The flags go to all workers.
    async fn start(model: &Path, router_flags: &[&str], flags: &[&str]) -> Self {
        let roles = Roles::new(model);
        let router = roles.router(router_flags);
        let mut cluster = Self {
            client: Client::connect(router.address()).await,
            decode: BTreeMap::new(),
            prefill: None,
            router,
            roles,
            flags: flags.iter().map(ToString::to_string).collect(),
        };
        cluster.add("decode-0");
        cluster.add("decode-1");
        cluster.prefill = Some(cluster.worker("prefill", "prefill-0"));
        cluster.client.until_ready(3).await;
        cluster
    }

    fn worker(&self, role: &str, name: &str) -> Process {
        let mut flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        flags.extend(["--worker-id", name]);
        self.roles.worker(role, &self.router, &flags)
    }

    fn add(&mut self, name: &str) {
        let worker = self.worker("decode", name);
        self.decode.insert(name.to_owned(), worker);
    }

    /// Starts a decode worker anew that has ended.
    async fn replace(&mut self, name: &str) {
        self.decode.get_mut(name).expect("its name").wait();
        self.add(name);
        self.client.until_ready(3).await;
    }

    /// Name of the decode worker that has most requests.
    async fn busiest(&self) -> String {
        let workers = self.client.status().await.workers;
        let decode = workers.iter().filter_map(|worker| {
            let info = worker.info.as_ref()?;
            (info.role() == WorkerRole::Decode).then_some((worker.in_flight, &info.worker_id))
        });
        let (requests, name) = decode.max().expect("a decode worker");
        assert!(requests > 0, "nobody runs anything");
        name.clone()
    }

    /// Waits until every decode worker is idle by its own account.
    async fn until_idle(&self) {
        for worker in self.decode.values() {
            let worker = WorkerClient::connect(worker.address()).await;
            worker.when("idle", is_idle).await;
        }
        self.client.assert_idle().await;
    }
}

/// Requests that differ in whatever a resumed one could get wrong, with prompts of at least `length` tokens.
fn requests(plain_text: &str, length: usize) -> Vec<GenerateRequest> {
    let request = |seed: u64, more: usize| endless(tiny_prompt(seed, length + more), TOKENS);
    vec![
        request(1, 15),
        with(request(2, 55), |sampling| {
            sampling.temperature = Some(1.0);
            sampling.seed = Some(7);
            sampling.logprobs = Some(3);
        }),
        with(request(3, 0), |sampling| {
            sampling.temperature = Some(0.9);
            sampling.seed = Some(8);
            sampling.n = Some(2);
            sampling.logprobs = Some(0);
        }),
        with(request(4, 25), |sampling| {
            sampling.temperature = Some(0.8);
            sampling.seed = Some(9);
            sampling.top_p = Some(0.95);
            sampling.presence_penalty = 0.7;
            sampling.frequency_penalty = 0.4;
            sampling.repetition_penalty = Some(1.2);
        }),
        // Three choices that end soon after their least number of tokens, each at its own place.
        with(request(5, 35), |sampling| {
            sampling.temperature = Some(1.0);
            sampling.seed = Some(10);
            sampling.n = Some(3);
            sampling.min_tokens = 60;
            sampling.stop_token_ids = (0..20).collect();
            sampling.prompt_logprobs = Some(1);
        }),
        with(plain(length), |sampling| {
            sampling.stop = vec![late_piece(plain_text)];
        }),
    ]
}

/// Completion tokens of most requests.
const TOKENS: u32 = 150;

fn plain(length: usize) -> GenerateRequest {
    endless(tiny_prompt(6, length + 5), TOKENS)
}

/// A piece of a text that it contains late, and not before.
fn late_piece(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let from = characters.len() * 3 / 4;
    (from..characters.len() - 4)
        .map(|at| characters[at..at + 4].iter().collect::<String>())
        .find(|piece| text.find(piece).is_some_and(|at| at > text.len() / 2))
        .expect("a text that does not only repeat itself")
}

/// What the requests give when nothing happens. Their prompts are not in any cache after that.
async fn undisturbed(client: &Client, length: usize) -> (Vec<GenerateRequest>, Vec<Essence>) {
    let salted = |request: &GenerateRequest| {
        let mut request = request.clone();
        request.cache_salt = "undisturbed".into();
        client.generate(request)
    };
    let text = salted(&plain(length)).await.expect("an answer");
    let requests = requests(text.text(), length);
    let answers = join_all(requests.iter().map(salted)).await.into_iter();
    let expected = answers.map(|answer| answer.expect("an answer").essence());
    (requests, expected.collect())
}

/// Sends all requests, lets `fault` happen once each has so many tokens, and takes the answers.
async fn disturbed<T>(
    client: &Client,
    requests: &[GenerateRequest],
    tokens: usize,
    fault: impl AsyncFnOnce() -> T,
) -> (Vec<Answer>, T) {
    let ready = Arc::new(AtomicUsize::new(0));
    let calls = requests.iter().map(|request| {
        let (client, request, ready) = (client.clone(), request.clone(), ready.clone());
        tokio::spawn(async move {
            let mut events = client.open(request).await;
            let mut answer = Answer::default();
            let mut is_ready = false;
            while let Some(event) = events.message().await.expect("it goes on") {
                answer.take(event);
                let choices = answer.choices.values();
                let got: usize = choices.map(|choice| choice.token_ids.len()).sum();
                if got >= tokens && !is_ready {
                    is_ready = true;
                    ready.fetch_add(1, Ordering::SeqCst);
                }
            }
            answer
        })
    });
    let calls: Vec<_> = calls.collect();
    let begin = Instant::now();
    while tokens > 0 && ready.load(Ordering::SeqCst) < requests.len() {
        assert!(begin.elapsed() < PATIENCE, "no tokens");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let told = fault().await;
    let answers = tokio::time::timeout(PATIENCE, join_all(calls)).await;
    let answers = answers.expect("answers in time").into_iter();
    (
        answers.map(|answer| answer.expect("no panic")).collect(),
        told,
    )
}

/// All answers are as expected; how many of them were resumed.
fn assert_same(what: &str, expected: &[Essence], answers: &[Answer]) -> usize {
    let mut resumed = 0;
    for (index, (expected, answer)) in expected.iter().zip(answers).enumerate() {
        assert_eq!(*expected, answer.essence(), "{what}: request {index}");
        let attempts = &answer.receipt().attempts;
        let mut resumes = attempts.iter().filter(|attempt| attempt.kept_tokens > 0);
        let is_told =
            |reason: &str| reason.starts_with("resume: ") || reason.contains("another grant");
        assert!(
            resumes.clone().all(|resume| is_told(&resume.reason)),
            "{attempts:?}"
        );
        resumed += usize::from(resumes.next().is_some());
    }
    resumed
}

/// Where prompts are prefilled, and how pages travel.
const PATHS: [(&str, &str); 3] = [("shm", "0"), ("tcp", "0"), ("tcp", "100000")];

async fn cluster(folder: &Path, (transport, local_tokens): (&str, &str), more: &[&str]) -> Cluster {
    let router_flags = ["--local-prefill-tokens", local_tokens];
    let mut flags = vec!["--transport", transport, "--pages", "1024"];
    flags.extend(more);
    Cluster::start(&slow_model(folder), &router_flags, &flags).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rte_07_streams_outlive_a_killed_decode_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in PATHS {
        let mut cluster = cluster(folder.path(), path, &[]).await;
        let (requests, expected) = undisturbed(&cluster.client, 75).await;
        let (answers, victim) = disturbed(&cluster.client, &requests, 15, async || {
            let victim = cluster.busiest().await;
            cluster.decode[&victim].signal("KILL");
            victim
        })
        .await;
        let resumed = assert_same(&format!("{path:?}"), &expected, &answers);
        assert!(resumed > 0, "{path:?}: nobody ran on {victim}");
        assert!(cluster.client.counter("resumes").await >= resumed as u64);
        assert_eq!(cluster.client.counter("tokens_contradicted").await, 0);
        cluster.replace(&victim).await;
        cluster.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rte_06_streams_outlive_a_stopped_decode_worker_and_it_comes_back_clean() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in PATHS {
        let cluster = cluster(folder.path(), path, &[]).await;
        let (requests, expected) = undisturbed(&cluster.client, 75).await;
        let (answers, victim) = disturbed(&cluster.client, &requests, 15, async || {
            let victim = cluster.busiest().await;
            cluster.decode[&victim].signal("STOP");
            victim
        })
        .await;
        assert!(assert_same(&format!("{path:?}"), &expected, &answers) > 0);
        // What it still has of those requests harms nobody, and it is taken back.
        cluster.decode[&victim].signal("CONT");
        cluster.client.until_ready(3).await;
        let (answers, ()) = disturbed(&cluster.client, &requests, 0, async || {}).await;
        assert_eq!(
            assert_same(&format!("{path:?} again"), &expected, &answers),
            0
        );
        assert_eq!(cluster.client.counter("tokens_contradicted").await, 0);
        cluster.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn str_05_streams_longer_than_the_drain_limit_go_on_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in PATHS {
        let mut cluster = cluster(folder.path(), path, &["--drain-limit-ms", "50"]).await;
        let (requests, expected) = undisturbed(&cluster.client, 75).await;
        let (answers, victim) = disturbed(&cluster.client, &requests, 15, async || {
            let victim = cluster.busiest().await;
            cluster.decode[&victim].signal("TERM");
            victim
        })
        .await;
        assert!(assert_same(&format!("{path:?}"), &expected, &answers) > 0);
        let drained = cluster.decode.get_mut(&victim).expect("its name");
        assert!(drained.wait().success(), "{}", drained.log());
        assert_eq!(cluster.client.counter("worker_failures").await, 0);
        cluster.replace(&victim).await;
        cluster.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rte_07_streams_wait_for_the_only_decode_worker_to_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in PATHS {
        let mut cluster = cluster(folder.path(), path, &[]).await;
        let (requests, expected) = undisturbed(&cluster.client, 75).await;
        let (answers, new) = disturbed(&cluster.client, &requests, 15, async || {
            for worker in cluster.decode.values() {
                worker.signal("KILL");
            }
            cluster.worker("decode", "decode-0")
        })
        .await;
        let resumed = assert_same(&format!("{path:?}"), &expected, &answers);
        assert!(resumed > 0, "{path:?}: all had ended");
        cluster.decode = BTreeMap::from([("decode-0".to_owned(), new)]);
        cluster.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_07_streams_outlive_a_prefill_worker_killed_before_its_commits() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in &PATHS[..2] {
        let mut cluster = cluster(folder.path(), *path, &[]).await;
        let (requests, expected) = undisturbed(&cluster.client, 700).await;
        let receivers = cluster
            .decode
            .values()
            .map(|worker| worker.address().to_owned());
        let receivers =
            join_all(receivers.map(async |address| WorkerClient::connect(&address).await));
        let receivers = receivers.await;
        let (answers, ()) = disturbed(&cluster.client, &requests, 0, async || {
            let receiving = receivers
                .iter()
                .map(|worker| Box::pin(worker.when("receiving", |load| ledger(load).granted > 0)));
            futures::future::select_all(receiving).await;
            cluster.prefill.as_ref().expect("it runs").signal("KILL");
        })
        .await;
        assert_same(&format!("{path:?}"), &expected, &answers);
        let retried = answers
            .iter()
            .filter(|answer| answer.receipt().attempts.len() > 1);
        assert!(retried.count() > 0, "{path:?}: nobody was in its hands");
        cluster.prefill = None;
        cluster.until_idle().await;
    }
}

/// Streams that each lose their decode worker once. Prints how long the client waits for its next token.
#[tokio::test(flavor = "multi_thread")]
async fn rte_07_gaps_in_streams_over_many_kills() {
    let kills = if soak() { 100 } else { 4 };
    let folder = tempfile::tempdir().expect("a folder");
    let mut cluster = cluster(folder.path(), ("shm", "0"), &[]).await;
    let request = |salt: &str| GenerateRequest {
        cache_salt: salt.into(),
        ..endless(tiny_prompt(11, 200), 300)
    };
    let expected = cluster.client.generate(request("undisturbed")).await;
    let expected = expected.expect("an answer").essence();
    let mut gaps = Vec::new();
    for kill in 0..kills {
        let mut events = cluster.client.open(request(&kill.to_string())).await;
        let mut answer = Answer::default();
        while answer
            .choices
            .get(&0)
            .is_none_or(|c| c.token_ids.len() < 20)
        {
            answer.take(next(&mut events).await);
        }
        let victim = cluster.busiest().await;
        cluster.decode[&victim].signal("KILL");
        // Tokens that were under way still come; the gap is the longest of those after the kill.
        let (mut last, mut gap) = (Instant::now(), Duration::ZERO);
        while answer.receipt.is_none() {
            answer.take(next(&mut events).await);
            gap = gap.max(last.elapsed());
            last = Instant::now();
        }
        assert_eq!(answer.essence(), expected);
        let attempts = &answer.receipt().attempts;
        assert!(
            attempts.iter().any(|one| one.kept_tokens > 0),
            "{attempts:?}"
        );
        gaps.push(gap);
        cluster.replace(&victim).await;
    }
    gaps.sort_unstable();
    let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share).round() as usize];
    println!(
        "gap over {kills} kills of the decode worker: p50 {:.1?}, p99 {:.1?}, longest {:.1?}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    cluster.until_idle().await;
}

async fn next(events: &mut Streaming<GenerateResponse>) -> GenerateResponse {
    let event = tokio::time::timeout(PATIENCE, events.message()).await;
    event
        .expect("in time")
        .expect("it goes on")
        .expect("more tokens")
}
