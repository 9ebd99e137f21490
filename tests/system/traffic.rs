//! Clients that ask all the time while workers die and fall silent under them: nobody is told, nobody gets
//! another answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use baton_proto::v1::GenerateRequest;
use futures::future::join_all;
use tokio::task::JoinHandle;

use crate::answer::Essence;
use crate::client::Client;
use crate::cluster::{Cluster, Fault};
use crate::models::{endless, slow_model, tiny_prompt, with};
use crate::process::PATIENCE;

/// Clients at once.
const CLIENTS: usize = 4;
/// Answers between one event and the next.
const ANSWERS: u64 = 12;
const HITS: [(&str, Fault); 4] = [
    ("decode-0", Fault::Kill),
    ("prefill-0", Fault::Stop),
    ("decode-1", Fault::Stop),
    ("prefill-1", Fault::Kill),
];

/// Clients that run by themselves.
struct Traffic {
    answers: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Duration>>,
}

impl Traffic {
    /// Each asks one request after the other; every answer must be the expected one.
    fn start(client: &Client, known: &Arc<Vec<(GenerateRequest, Essence)>>) -> Self {
        let (answers, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let clients = (0..CLIENTS).map(|_| {
            let (answers, over) = (answers.clone(), over.clone());
            let (client, known) = (client.clone(), known.clone());
            tokio::spawn(async move {
                let mut longest = Duration::ZERO;
                while !over.load(Ordering::Relaxed) {
                    let number = answers.fetch_add(1, Ordering::Relaxed);
                    let (request, expected) = &known[number as usize % known.len()];
                    let mut request = request.clone();
                    // Pages move each time.
                    request.cache_salt = number.to_string();
                    let begin = Instant::now();
                    let answer = client.generate(request).await.expect("no request fails");
                    longest = longest.max(begin.elapsed());
                    assert_eq!(answer.essence(), *expected, "request {number}");
                }
                longest
            })
        });
        let clients = clients.collect();
        Self {
            answers,
            over,
            clients,
        }
    }

    /// Waits for more answers.
    async fn more(&self, count: u64) {
        let wanted = self.answers.load(Ordering::Relaxed) + count;
        let begin = Instant::now();
        while self.answers.load(Ordering::Relaxed) < wanted {
            let broken = self.clients.iter().any(JoinHandle::is_finished);
            assert!(!broken, "a client got no answer, or another one");
            assert!(begin.elapsed() < PATIENCE, "no answers any more");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends all; answers asked for, and the longest wait for one.
    async fn stop(self) -> (u64, Duration) {
        self.over.store(true, Ordering::Relaxed);
        let longest = join_all(self.clients).await;
        let longest = longest.into_iter().map(|one| one.expect("as expected"));
        (
            self.answers.load(Ordering::Relaxed),
            longest.max().unwrap_or_default(),
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rte_06_workers_killed_and_stopped_under_traffic_cost_nobody_an_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = ["--pages", "512"];
    let mut cluster = Cluster::start(&slow_model(folder.path()), &flags, &flags).await;
    let mut known = Vec::new();
    for seed in 0..5 {
        let request = with(endless(tiny_prompt(seed, 200), 24), |sampling| {
            sampling.temperature = Some(0.8);
            sampling.seed = Some(seed);
            sampling.logprobs = Some(0);
        });
        let answer = cluster.client.generate(request.clone()).await;
        known.push((request, answer.expect("undisturbed").essence()));
    }
    let traffic = Traffic::start(&cluster.client, &Arc::new(known));
    for (victim, fault) in HITS {
        traffic.more(ANSWERS).await;
        cluster.hit(victim, fault).await;
        traffic.more(ANSWERS).await;
        cluster.mend(victim).await;
        cluster.client.until_ready(4).await;
    }
    let (answers, longest) = traffic.stop().await;
    println!("{answers} requests, the longest took {longest:?}");
    cluster.recover().await;
}
