//! Routers and workers that find each other through a real etcd, and what etcd's absence costs: nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use baton_proto::v1::GenerateRequest;
use etcd_client::GetOptions;
use tokio::task::JoinHandle;

use crate::answer::Answer;
use crate::client::{Client, WorkerClient};
use crate::etcd_server::EtcdServer;
use crate::models::{endless, slow_model, tiny_model, tiny_prompt};
use crate::process::{PATIENCE, Process, assert_refused, baton, runs, soak};
use crate::service::{Roles, Setup};

/// An etcd and what is started over it.
struct Place {
    membership: String,
    roles: Roles,
    etcd: EtcdServer,
}

impl Place {
    fn new(model: &std::path::Path) -> Self {
        let etcd = EtcdServer::start(&[]);
        Self {
            membership: format!("etcd:{}", etcd.endpoint()),
            roles: Roles::new(model),
            etcd,
        }
    }

    fn router(&self) -> Process {
        self.roles.router(&["--membership", &self.membership])
    }

    /// A worker with a short lease; more flags may follow.
    fn worker(&self, role: &str, id: &str, flags: &[&str]) -> Process {
        let mut all = vec!["--membership", &self.membership, "--worker-id", id];
        all.extend(["--threads", "1", "--pages", "1024"]);
        for (flag, value) in [("--etcd-lease-s", "1"), ("--listen", "127.0.0.1:0")] {
            if !flags.contains(&flag) {
                all.extend([flag, value]);
            }
        }
        all.extend(flags);
        self.roles.role(role, &all)
    }
}

async fn etcd_client(etcd: &EtcdServer) -> etcd_client::Client {
    etcd_client::Client::connect([etcd.endpoint()], None)
        .await
        .expect("etcd answers")
}

/// Keys of all workers, without what they have in common.
async fn keys(etcd: &EtcdServer) -> Vec<String> {
    let all = GetOptions::new().with_prefix().with_keys_only();
    let found = etcd_client(etcd)
        .await
        .get("baton/workers/", Some(all))
        .await;
    let found = found.expect("etcd answers");
    let keys = found.kvs().iter().map(|one| one.key_str().expect("text"));
    keys.map(|key| key.trim_start_matches("baton/workers/").to_owned())
        .collect()
}

async fn until_keys(etcd: &EtcdServer, count: usize) -> Vec<String> {
    let begin = Instant::now();
    loop {
        let keys = keys(etcd).await;
        if keys.len() == count {
            return keys;
        }
        assert!(begin.elapsed() < PATIENCE, "not {count} keys: {keys:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_counter(client: &Client, name: &str, wanted: impl Fn(u64) -> bool) {
    let begin = Instant::now();
    while !wanted(client.counter(name).await) {
        assert!(begin.elapsed() < PATIENCE, "{name} does not come right");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Requests without a pause, each answered exactly.
struct Traffic {
    stop: Arc<AtomicBool>,
    task: JoinHandle<u64>,
}

impl Traffic {
    fn start(client: &Client, request: GenerateRequest, expected: &Answer) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, client, expected) = (stop.clone(), client.clone(), expected.clone());
        let task = tokio::spawn(async move {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                let answer = client.generate(request.clone()).await;
                let answer = answer.unwrap_or_else(|status| panic!("request {count}: {status:?}"));
                assert_eq!(answer.choices, expected.choices, "request {count}");
                count += 1;
            }
            count
        });
        Self { stop, task }
    }

    /// How many were answered, all of them well.
    async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("every request is answered exactly")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_01_two_routers_serve_through_every_outage_of_etcd() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut place = Place::new(&tiny_model(folder.path()));
    let routers = [place.router(), place.router()];
    let workers = [
        place.worker("decode", "decode-0", &[]),
        place.worker("decode", "decode-1", &[]),
        place.worker("prefill", "prefill-0", &[]),
    ];
    let mut clients = Vec::new();
    for router in &routers {
        let client = Client::connect(router.address()).await;
        client.until_ready(3).await;
        clients.push(client);
    }
    assert_eq!(keys(&place.etcd).await.len(), 3);
    let request = endless(tiny_prompt(1, 200), 12);
    let expected = clients[0]
        .generate(request.clone())
        .await
        .expect("an answer");
    assert_eq!(expected.workers().0, "prefill-0", "it is split");
    let traffic: Vec<_> = clients
        .iter()
        .map(|client| Traffic::start(client, request.clone(), &expected))
        .collect();

    let stopped = if soak() { 30 } else { 3 };
    for outage in ["stopped", "killed", "killed and emptied"] {
        let back = Instant::now();
        if outage == "stopped" {
            place.etcd.signal("STOP");
            tokio::time::sleep(Duration::from_secs(stopped)).await;
            place.etcd.signal("CONT");
        } else {
            place.etcd.kill();
            for client in &clients {
                until_counter(client, "membership_age_ms", |age| age > 2500).await;
            }
            place.etcd.start_again(outage == "killed");
        }
        until_keys(&place.etcd, 3).await;
        let outage_ms = back.elapsed().as_millis() as u64;
        for client in &clients {
            until_counter(client, "membership_age_ms", |age| age < outage_ms.min(2500)).await;
            until_counter(client, "membership_entries", |count| count == 3).await;
            client.until_ready(3).await;
        }
    }
    for traffic in traffic {
        assert!(traffic.stop().await > 0, "there was no traffic");
    }
    for process in routers.iter().chain(&workers) {
        assert!(runs(process.pid()), "somebody ended: {}", process.log());
        let log = process.log();
        for news in ["not registered in etcd", "etcd is away"] {
            let told = log.matches(news).count();
            assert!(told <= 12, "{news:?} was told {told} times:\n{log}");
        }
    }
    for client in &clients {
        client.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_02_a_lease_revoked_under_traffic_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place::new(&tiny_model(folder.path()));
    let router = place.router();
    let decode = place.worker("decode", "decode-0", &[]);
    let client = Client::connect(router.address()).await;
    client.until_ready(1).await;
    let request = endless(tiny_prompt(2, 60), 10);
    let expected = client.generate(request.clone()).await.expect("an answer");
    let traffic = Traffic::start(&client, request, &expected);
    let mut etcd = etcd_client(&place.etcd).await;
    let before = keys(&place.etcd).await;
    for _ in 0..3 {
        let leases = etcd.leases().await.expect("etcd answers");
        let [lease] = leases.leases() else {
            panic!("one worker has one lease: {leases:?}")
        };
        let lease = lease.id();
        etcd.lease_revoke(lease).await.expect("revoked");
        assert_eq!(
            until_keys(&place.etcd, 1).await,
            before,
            "the same worker again"
        );
        until_counter(&client, "membership_entries", |count| count == 1).await;
    }
    assert!(traffic.stop().await > 0);
    assert!(runs(decode.pid()));
    client.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_07_an_address_taken_over_by_another_role_gets_no_wrong_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place::new(&tiny_model(folder.path()));
    let router = place.router();
    let _decode = place.worker("decode", "decode-0", &[]);
    // Its lease outlives it by far.
    let mut prefill = place.worker("prefill", "prefill-0", &["--etcd-lease-s", "600"]);
    let client = Client::connect(router.address()).await;
    client.until_ready(2).await;
    let request = endless(tiny_prompt(3, 200), 10);
    let expected = client.generate(request.clone()).await.expect("an answer");
    assert_eq!(expected.workers().0, "prefill-0");
    let traffic = Traffic::start(&client, request, &expected);
    let address = prefill.address().to_owned();
    prefill.signal("KILL");
    prefill.wait();
    let _other = place.worker("decode", "decode-1", &["--listen", &address]);
    client.until_ready(2).await;
    until_counter(&client, "membership_workers_fenced", |count| count > 0).await;
    let addresses = client.addresses().await;
    assert_eq!(addresses["decode-1"], address);
    assert!(!addresses.contains_key("prefill-0"), "{addresses:?}");
    assert!(traffic.stop().await > 0);
    assert_eq!(
        keys(&place.etcd).await.len(),
        3,
        "the old key is still there"
    );
    client.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_09_workers_of_one_name_do_not_take_each_other_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place::new(&tiny_model(folder.path()));
    let router = place.router();
    let mut first = place.worker("decode", "twin", &[]);
    let client = Client::connect(router.address()).await;
    // It stops for longer than its lease, and its successor comes.
    first.signal("STOP");
    let _second = place.worker("decode", "twin", &[]);
    client.until_ready(1).await;
    let request = endless(tiny_prompt(4, 60), 10);
    let expected = client.generate(request.clone()).await.expect("an answer");
    until_keys(&place.etcd, 1).await;
    // The old one comes back as what it is: another process.
    first.signal("CONT");
    client.until_ready(2).await;
    until_keys(&place.etcd, 2).await;
    let traffic = Traffic::start(&client, request, &expected);
    first.signal("TERM");
    assert!(first.wait().success(), "{}", first.log());
    client.until_ready(1).await;
    until_keys(&place.etcd, 1).await;
    until_counter(&client, "membership_entries", |count| count == 1).await;
    assert!(traffic.stop().await > 0);
    client.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_a_worker_that_ends_leaves_etcd_first_and_finishes() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place::new(&slow_model(folder.path()));
    let routers = [place.router(), place.router()];
    let mut leaving = place.worker("decode", "decode-0", &[]);
    let mut clients = Vec::new();
    for router in &routers {
        let client = Client::connect(router.address()).await;
        client.until_ready(1).await;
        clients.push(client);
    }
    let request = endless(tiny_prompt(5, 60), 150);
    let expected = clients[0]
        .generate(request.clone())
        .await
        .expect("an answer");
    let _staying = place.worker("decode", "decode-1", &[]);
    for client in &clients {
        client.until_ready(2).await;
    }
    let running = WorkerClient::connect(leaving.address()).await;
    let open: Vec<_> = (0..6)
        .map(|number| {
            let (client, request) = (clients[number % 2].clone(), request.clone());
            tokio::spawn(async move { client.generate(request).await })
        })
        .collect();
    running.when("busy", |load| load.running > 0).await;
    leaving.signal("TERM");
    // Out of etcd while it still runs.
    let keys = until_keys(&place.etcd, 1).await;
    assert!(keys[0].starts_with("decode/decode-1/"), "{keys:?}");
    for client in &clients {
        client.until_ready(1).await;
        let answer = client.generate(endless(tiny_prompt(6, 40), 3)).await;
        assert_eq!(answer.expect("the other takes it").workers().1, "decode-1");
    }
    for answer in open {
        let answer = answer.await.expect("no panic").expect("finished");
        assert_eq!(answer.choices, expected.choices);
    }
    assert!(leaving.wait().success(), "{}", leaving.log());
    for client in &clients {
        client.until_ready(1).await;
        client.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_routers_see_a_drain_that_one_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place::new(&tiny_model(folder.path()));
    let routers = [place.router(), place.router()];
    let _workers = [
        place.worker("decode", "decode-0", &[]),
        place.worker("decode", "decode-1", &[]),
    ];
    let [one, other] = [
        Client::connect(routers[0].address()).await,
        Client::connect(routers[1].address()).await,
    ];
    one.until_ready(2).await;
    other.until_ready(2).await;
    let drained = baton(&["drain", "decode-0", "--connect", &one.address]);
    assert_eq!(drained.code, Some(0), "{drained:?}");
    for client in [&one, &other] {
        client.until_ready(1).await;
        for seed in 0..4 {
            let answer = client.generate(endless(tiny_prompt(seed, 40), 3)).await;
            assert_eq!(answer.expect("an answer").workers().1, "decode-1");
        }
    }
    until_keys(&place.etcd, 1).await;
}

#[test]
fn k8s_03_ready_only_when_registered_and_a_router_has_come() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let Place {
        membership,
        roles,
        mut etcd,
    } = Place::new(&tiny_model(folder.path()));
    etcd.kill();
    let flags = ["--membership", &membership, "--threads", "1"];
    std::thread::scope(|scope| {
        // Returns when the worker says that it is ready.
        let worker = scope.spawn(|| roles.role("decode", &flags));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!worker.is_finished(), "ready without etcd");
        etcd.start_again(true);
        runtime.block_on(until_keys(&etcd, 1));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!worker.is_finished(), "ready without any router");
        let router = roles.router(&["--membership", &membership]);
        let worker = worker.join().expect("it becomes ready");
        runtime.block_on(async {
            let client = Client::connect(router.address()).await;
            client.until_ready(1).await;
            let answer = client.generate(endless(tiny_prompt(1, 20), 3)).await;
            assert_eq!(answer.expect("an answer").ids().len(), 3);
        });
        drop(worker);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_03_a_router_of_another_model_makes_nobody_ready() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place::new(&tiny_model(folder.path()));
    let router = place.router();
    let _decode = place.worker("decode", "decode-0", &[]);
    let model = slow_model(folder.path()).display().to_string();
    // It never gets ready, so it is not started by `worker`.
    let stranger = std::process::Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(["decode", "--model", &model, "--worker-id", "stranger"])
        .args(["--membership", &place.membership])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let client = Client::connect(router.address()).await;
    let begin = Instant::now();
    while !(client.status().await.workers.iter())
        .any(|one| one.state.contains("metadata_digest") && one.load_age_ms < 60_000)
    {
        assert!(begin.elapsed() < PATIENCE, "it never came");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for seed in 0..4 {
        let answer = client.generate(endless(tiny_prompt(seed, 100), 4)).await;
        assert_eq!(answer.expect("an answer").workers().1, "decode-0");
    }
    crate::process::signal(stranger.id(), "TERM");
    let ended = stranger.wait_with_output().expect("it ends");
    let (out, log) = (
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr),
    );
    assert!(!out.contains("ready"), "{out}\n{log}");
    assert!(log.contains("metadata_digest"), "{log}");
    until_keys(&place.etcd, 1).await;
    client.until_ready(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn up_uses_etcd_when_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let etcd = EtcdServer::start(&[]);
    let service = Setup::new(&tiny_model(folder.path()))
        .flag("--membership", format!("etcd:{}", etcd.endpoint()))
        .flag("--local-prefill-tokens", 0)
        .start()
        .await;
    let answer = service.generate(endless(tiny_prompt(1, 100), 4)).await;
    assert_eq!(
        answer.expect("an answer").workers(),
        ("prefill-0", "decode-0")
    );
    assert_eq!(keys(&etcd).await.len(), 2);
    let status = baton(&["status", "--connect", &service.address]);
    assert!(status.stdout.contains("etcd heard"), "{status:?}");
    drop(service);
    until_keys(&etcd, 0).await;
}

#[test]
fn sec_07_membership_flags_are_checked() {
    let etcd = "etcd:127.0.0.1:1";
    let long = "x".repeat(200);
    let refused: [(&[&str], &str); 13] = [
        (&["--membership", "etcd:"], "host:port"),
        (&["--membership", "etcd"], "etcd:HOST:PORT"),
        (&["--membership", "etcd:a,b:1"], "`a`"),
        (&["--membership", etcd, "--etcd-prefix", "../x"], "`../x`"),
        (&["--membership", etcd, "--etcd-prefix", "a//b"], "`a//b`"),
        (&["--membership", etcd, "--etcd-prefix", "a b"], "`a b`"),
        (&["--membership", etcd, "--etcd-prefix", ""], "key prefix"),
        (
            &["--membership", etcd, "--etcd-prefix", &long],
            "key prefix",
        ),
        (
            &["--membership", etcd, "--etcd-user", "u"],
            "BATON_ETCD_PASSWORD",
        ),
        (
            &["--membership", etcd, "--etcd-password-file", "f"],
            "--etcd-user",
        ),
        (&["--membership", etcd, "--etcd-cert", "c"], "--etcd-key"),
        (&["--membership", etcd, "--etcd-ca", "/absent"], "/absent"),
        (&["--membership", "etcd:https://a:1"], "CA"),
    ];
    for (flags, part) in refused {
        for role in ["prefill", "decode"] {
            let mut arguments = vec![role, "--model", "/absent.gguf"];
            arguments.extend(flags);
            assert_refused(&arguments, 2, &[part]);
        }
    }
    let decode = ["decode", "--model", "/absent.gguf", "--membership"];
    for (flags, part) in [
        (&["embedded"][..], "--router"),
        (&[etcd, "--router", "127.0.0.1:1"], "--router 127.0.0.1:1"),
        (&["static:f", "--router", "127.0.0.1:1"], "--router"),
        (&[etcd, "--etcd-lease-s", "0"], "etcd-lease-s is 0"),
        (&[etcd, "--worker-id", "../x"], "--worker-id"),
    ] {
        let arguments: Vec<_> = decode.iter().chain(flags).copied().collect();
        assert_refused(&arguments, 2, &[part]);
    }
}
