//! Callers that leave: whatever their requests held comes back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_model_file::fixtures::Random;

use crate::client::{Client, WorkerClient, ledger};
use crate::models::{endless, tiny_model, tiny_prompt, with};
use crate::process::{resident_mib, soak};
use crate::service::Setup;

/// Memory that rounds of requests may add for good, in MiB: caches of allocators, not requests.
const GROWTH_MIB: u64 = 24;

#[tokio::test(flavor = "multi_thread")]
async fn sch_13_callers_that_leave_in_any_phase_leave_no_page_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    for transport in ["shm", "tcp"] {
        let service = Setup::new(&tiny_model(folder.path()))
            .flag("--transport", transport)
            .flag("--pages", 200)
            // Small chunks make prefill last.
            .flag("--prefill-token-budget", 32)
            .start()
            .await;
        let seed = 99;
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let rounds = if soak() { 500 } else { 60 };
        let watch = Watch::start(&service).await;
        let mut resident = None;
        for round in 0..rounds {
            let leaving = (0..6)
                .map(|_| leave(&service, &mut random))
                .collect::<Vec<_>>();
            futures::future::join_all(leaving).await;
            if round % 20 == 19 {
                service.assert_idle().await;
                let now = resident_of_all(&service).await;
                let first = *resident.get_or_insert(now);
                assert!(
                    now <= first + GROWTH_MIB,
                    "memory grows: {first} MiB after 20 rounds, {now} MiB after {round}"
                );
            }
        }
        let seen = watch.end().await;
        for phase in ["queued", "prefilling", "transferring", "decoding"] {
            assert!(seen.contains(phase), "nobody was {phase}: {seen:?}");
        }
        let answer = service
            .generate(endless(tiny_prompt(5, 300), 20))
            .await
            .expect("still serving");
        assert_eq!(answer.ids().len(), 20);
        service.assert_idle().await;
    }
}

/// A caller that leaves: some at once, some half way, few stay to the end.
fn leave(client: &Client, random: &mut Random) -> impl Future<Output = ()> + use<> {
    let prompt = tiny_prompt(random.bits(), 1 + random.below(700));
    let request = with(endless(prompt, 300), |sampling| {
        sampling.n = Some(1 + random.below(3) as u32);
        sampling.prompt_logprobs = (random.below(4) == 0).then_some(1);
    });
    let patience = Duration::from_micros(random.below(60_000) as u64);
    let mut client = client.inference();
    async move {
        let stay = async {
            if let Ok(response) = client.generate(request).await {
                let mut events = response.into_inner();
                while let Ok(Some(_)) = events.message().await {}
            }
        };
        // Leaving is the point.
        let _ = tokio::time::timeout(patience, stay).await;
    }
}

/// Memory of router and workers together.
async fn resident_of_all(client: &Client) -> u64 {
    let status = client.status().await;
    let workers = status.workers.iter().filter_map(|one| one.info.as_ref());
    let router = status.router.as_ref().expect("router").pid;
    workers
        .map(|info| info.pid)
        .chain([router])
        .map(resident_mib)
        .sum()
}

/// Looks at both workers all the time and notes the phases in which requests were.
struct Watch {
    over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<BTreeSet<&'static str>>,
}

impl Watch {
    async fn start(client: &Client) -> Self {
        let addresses = client.addresses().await;
        let prefill = WorkerClient::connect(&addresses["prefill-0"]).await;
        let decode = WorkerClient::connect(&addresses["decode-0"]).await;
        let over = Arc::new(AtomicBool::new(false));
        let watched = over.clone();
        let task = tokio::spawn(async move {
            let mut seen = BTreeSet::new();
            while !watched.load(Ordering::Relaxed) {
                let (prefill, decode) = (prefill.load().await, decode.load().await);
                if prefill.queued + decode.queued > 0 {
                    seen.insert("queued");
                }
                if prefill.queued_tokens > 0 && ledger(&prefill).live > 0 {
                    seen.insert("prefilling");
                }
                if ledger(&decode).granted > 0 {
                    seen.insert("transferring");
                }
                if decode.running > 0 {
                    seen.insert("decoding");
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            seen
        });
        Self { over, task }
    }

    async fn end(self) -> BTreeSet<&'static str> {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.expect("watching does not fail")
    }
}
