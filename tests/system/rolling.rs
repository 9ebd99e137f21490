//! Every process replaced under load, one after the other: nobody's request fails, no token changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_model_file::fixtures::TinyModel;
use baton_proto::v1::GenerateRequest;
use tokio::task::JoinSet;
use tonic::Code;

use crate::answer::Answer;
use crate::client::{Client, rest};
use crate::etcd_server::EtcdServer;
use crate::models::{endless, slow_model, tiny, tiny_prompt, with};
use crate::process::{PATIENCE, Process};
use crate::service::Roles;

/// Clients at work at once.
const CLIENTS: usize = 4;

/// An etcd and who meets there.
struct Fleet {
    roles: Roles,
    membership: String,
    _etcd: EtcdServer,
}

impl Fleet {
    fn new(model: &Path) -> Self {
        let etcd = EtcdServer::start(&[]);
        Self {
            roles: Roles::new(model),
            membership: format!("etcd:{}", etcd.endpoint()),
            _etcd: etcd,
        }
    }

    fn router(&self) -> Process {
        let flags = ["--membership", &self.membership, "--drain-notice-ms", "500"];
        self.roles.router(&flags)
    }

    fn worker(&self, role: &str, id: &str, flags: &[&str]) -> Process {
        let own = ["--membership", &self.membership, "--worker-id", id];
        let small = [
            "--threads",
            "1",
            "--pages",
            "512",
            "--listen",
            "127.0.0.1:0",
        ];
        self.roles
            .role(role, &[&own[..], &small[..], flags].concat())
    }
}

/// Requests with one right answer each.
struct Questions(Vec<(GenerateRequest, Answer)>);

impl Questions {
    /// Asks them once, undisturbed.
    async fn ask(client: &Client) -> Arc<Self> {
        let requests = [
            endless(tiny_prompt(1, 150), 40),
            with(endless(tiny_prompt(2, 300), 30), |sampling| {
                sampling.temperature = Some(0.9);
                sampling.seed = Some(7);
                sampling.presence_penalty = 0.5;
                sampling.logprobs = Some(2);
            }),
            with(endless(tiny_prompt(3, 90), 50), |sampling| {
                sampling.temperature = Some(1.1);
                sampling.seed = Some(8);
                sampling.n = Some(2);
            }),
        ];
        let mut all = Vec::new();
        for request in requests {
            let answer = client.generate(request.clone()).await.expect("an answer");
            all.push((request, answer));
        }
        Arc::new(Self(all))
    }
}

/// Clients that ask one question after the other, each at the router whose turn it is; one that has ended, or says
/// that it is about to, makes them turn to the other.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    clients: JoinSet<()>,
}

impl Load {
    fn start(addresses: &[String; 2], questions: &Arc<Questions>) -> Self {
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (stop, answered) = (stop.clone(), answered.clone());
            let (addresses, questions) = (addresses.clone(), questions.clone());
            clients.spawn(async move {
                let mut turn = number;
                while !stop.load(Ordering::Relaxed) {
                    let (request, expected) = &questions.0[turn % questions.0.len()];
                    let answer = ask(&addresses, turn, request).await;
                    assert_eq!(answer.choices, expected.choices, "request {turn}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    turn += 1;
                }
            });
        }
        Self {
            stop,
            answered,
            clients,
        }
    }

    /// Waits until some more requests have been answered.
    async fn more(&self) {
        let wanted = self.answered.load(Ordering::Relaxed) + 2 * CLIENTS as u64;
        let all = async {
            while self.answered.load(Ordering::Relaxed) < wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let all = tokio::time::timeout(PATIENCE, all);
        all.await.expect("requests go on");
    }

    async fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.expect("every answer is right");
        }
        self.answered.load(Ordering::Relaxed)
    }
}

/// Asks one of two routers: the second only if the first takes nothing.
async fn ask(addresses: &[String; 2], turn: usize, request: &GenerateRequest) -> Answer {
    let mut refusals = Vec::new();
    for attempt in 0..4 {
        let address = &addresses[(turn + attempt) % 2];
        let Some((client, _)) = Client::try_connect(address).await else {
            refusals.push(format!("{address} does not answer"));
            continue;
        };
        // A refusal comes before the stream; what happens to a stream later is no excuse.
        match client.inference().generate(request.clone()).await {
            Ok(stream) => {
                let answer = rest(stream.into_inner(), Answer::default()).await;
                return answer.unwrap_or_else(|status| panic!("{address}: {status:?}"));
            }
            Err(status) if status.code() == Code::Unavailable => {
                refusals.push(format!("{address}: {status:?}"));
            }
            Err(status) => panic!("{address}: {status:?}"),
        }
    }
    panic!("nobody takes the request: {refusals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_all_workers_and_a_router_are_replaced_under_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let fleet = Fleet::new(&slow_model(folder.path()));
    let mut routers = [fleet.router(), fleet.router()];
    let mut workers: Vec<(&str, Process)> = Vec::new();
    for (role, id) in [
        ("prefill", "p-0"),
        ("prefill", "p-1"),
        ("decode", "d-0"),
        ("decode", "d-1"),
    ] {
        workers.push((role, fleet.worker(role, id, &[])));
    }
    let addresses = routers.each_ref().map(|router| router.address().to_owned());
    let client = Client::connect(&addresses[0]).await;
    client.until_ready(4).await;
    Client::connect(&addresses[1]).await.until_ready(4).await;
    let questions = Questions::ask(&client).await;
    let load = Load::start(&addresses, &questions);
    load.more().await;
    for (number, (role, old)) in workers.iter_mut().enumerate() {
        // One more first, as a deployment does it that never has too few.
        let new = fleet.worker(role, &format!("new-{number}"), &[]);
        client.until_ready(5).await;
        old.signal("TERM");
        assert!(old.wait().success(), "{}", old.log());
        *old = new;
        load.more().await;
    }
    routers[1].signal("TERM");
    assert!(routers[1].wait().success(), "{}", routers[1].log());
    load.more().await;
    let answered = load.stop().await;
    println!("{answered} requests answered");
    client.until_ready(4).await;
    client.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_an_upgrade_to_another_page_size_pairs_like_with_like() {
    // What decodes there still has its pages, and new prompts go to the new pair.
    upgrade_to_another_page_size(["prefill", "decode"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_an_upgrade_to_another_page_size_may_begin_with_decode() {
    // What is being prefilled there finds nobody to be handed to, and is prefilled again for the new one.
    upgrade_to_another_page_size(["decode", "prefill"]).await;
}

/// Old workers of these roles end, one after the other, once there are new ones.
async fn upgrade_to_another_page_size(ends: [&str; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let fleet = Fleet::new(&slow_model(folder.path()));
    let routers = [fleet.router(), fleet.router()];
    let mut old = ends.map(|role| fleet.worker(role, &format!("{}-old", &role[..1]), &[]));
    let addresses = routers.each_ref().map(|router| router.address().to_owned());
    let client = Client::connect(&addresses[0]).await;
    client.until_ready(2).await;
    Client::connect(&addresses[1]).await.until_ready(2).await;
    let questions = Questions::ask(&client).await;
    let load = Load::start(&addresses, &questions);
    load.more().await;
    let other = ["--page-size", "32"];
    let _new = [
        fleet.worker("decode", "d-new", &other),
        fleet.worker("prefill", "p-new", &other),
    ];
    client.until_ready(4).await;
    load.more().await;
    for worker in &mut old {
        worker.signal("TERM");
        assert!(worker.wait().success(), "{}", worker.log());
        load.more().await;
    }
    println!("{} requests answered", load.stop().await);
    let answer = client
        .generate(questions.0[0].0.clone())
        .await
        .expect("an answer");
    assert_eq!(answer.workers().1, "d-new");
    client.until_ready(2).await;
    client.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_an_upgrade_to_another_model_keeps_old_and_new_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let models = [1, 2].map(|seed| {
        let path = folder.path().join(format!("{seed}.gguf"));
        // Two fine-tunes: nothing differs but the weights.
        let model = TinyModel { seed, ..tiny() };
        model.write_gguf(&path).expect("the folder is writable");
        path
    });
    let [old, new] = models.each_ref().map(PathBuf::as_path);
    let fleet = Fleet::new(old);
    let start = |model: &Path, role: &str, id: &str| {
        let mut all = vec![role, "--model", model.to_str().expect("UTF-8")];
        all.extend(["--membership", &fleet.membership, "--listen", "127.0.0.1:0"]);
        if role != "router" {
            all.extend(["--worker-id", id, "--threads", "1", "--pages", "512"]);
        }
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        Process::start(&all)
    };
    // Workers are ready when a router has come: routers first.
    let old_router = start(old, "router", "");
    let old_workers = [
        start(old, "prefill", "p-old"),
        start(old, "decode", "d-old"),
    ];
    let before = Client::connect(old_router.address()).await;
    before.until_ready(2).await;
    let old_questions = Questions::ask(&before).await;
    let address = old_router.address().to_owned();
    let old_load = Load::start(&[address.clone(), address], &old_questions);

    let new_router = start(new, "router", "");
    let _new_workers = [
        start(new, "prefill", "p-new"),
        start(new, "decode", "d-new"),
    ];
    let after = Client::connect(new_router.address()).await;
    after.until_ready(2).await;
    let new_questions = Questions::ask(&after).await;
    assert_ne!(old_questions.0[0].1.choices, new_questions.0[0].1.choices);
    let address = new_router.address().to_owned();
    let new_load = Load::start(&[address.clone(), address], &new_questions);
    old_load.more().await;
    new_load.more().await;
    println!("{} requests of the old model", old_load.stop().await);
    for mut worker in old_workers {
        worker.signal("TERM");
        assert!(worker.wait().success(), "{}", worker.log());
    }
    new_load.more().await;
    println!("{} requests of the new model", new_load.stop().await);
}
