//! Router and workers on hosts of their own, and networks that cut off, lose, delay and crawl: silence is
//! told from slowness, and no token is lost to either.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use baton_proto::v1::{GenerateRequest, WorkerLoad};
use futures::future::join_all;

use crate::answer::Answer;
use crate::client::{Client, WorkerClient, is_idle, ledger, rest};
use crate::models::{endless, slow_model, tiny_prompt, with};
use crate::namespace::{Host, Lan, PROBED};
use crate::process::{PATIENCE, Process, Turn};

/// Hosts: the router, a prefill worker, two decode workers.
const HOSTS: usize = 4;
/// The hosts' network is the test's alone.
const OPEN: (&str, &str) = ("--insecure-listen", "true");
/// Longest time until a worker that nobody reaches is rid of what others left with it: silence shows in two
/// seconds, a transfer's lease ends after five.
const ABANDONED: Duration = Duration::from_secs(30);

/// All four processes, each on its host. Workers end before the router, hosts after all.
struct Site {
    client: Client,
    decode: [Seat; 2],
    prefill: Seat,
    router: Seat,
    model: PathBuf,
    _lan: Lan,
    _turn: Turn,
}

/// A process, its host, and (of a worker) a client.
struct Seat {
    process: Process,
    client: Option<WorkerClient>,
    host: Host,
}

impl Seat {
    fn worker(&self) -> &WorkerClient {
        self.client.as_ref().expect("a worker")
    }

    /// What it has now, if it can be reached.
    async fn load(&self) -> Option<WorkerLoad> {
        self.worker().try_load(Duration::from_millis(500)).await
    }

    /// Waits, at its own host, until it holds nothing.
    fn idle_by_itself(&self) -> Duration {
        let begin = Instant::now();
        let address = self.process.address().to_owned();
        let look = async move {
            let client = WorkerClient::connect(&address).await;
            client.within(ABANDONED, "idle", is_idle).await;
        };
        let looked = tokio::task::block_in_place(|| self.host.inside(look).join());
        looked.expect("idle in time");
        begin.elapsed()
    }
}

impl Site {
    /// Starts all. Each host is so many milliseconds away.
    async fn start(model: &Path, milliseconds: u32) -> Self {
        let turn = Turn::take();
        let lan = Lan::new(HOSTS, milliseconds);
        let lan = lan.unwrap_or_else(|why| panic!("{PROBED}: {why}"));
        let [router, prefill, first, second] = lan.hosts() else {
            panic!("there are {HOSTS} hosts");
        };
        let at = |host: &Host| [("--listen".to_owned(), format!("{}:0", host.address()))];
        let split = [("--local-prefill-tokens", "0"), OPEN];
        let split = split.map(|(flag, value)| (flag.to_owned(), value.to_owned()));
        let router = Seat {
            process: start(router, "router", model, at(router).into_iter().chain(split)),
            client: None,
            host: router.clone(),
        };
        let address = router.process.address().to_owned();
        let decode = [
            worker(first, "decode", "decode-0", model, &address, 0).await,
            worker(second, "decode", "decode-1", model, &address, 0).await,
        ];
        let prefill = worker(prefill, "prefill", "prefill-0", model, &address, 0).await;
        let client = Client::connect(&address).await;
        client.until_ready(3).await;
        Self {
            client,
            decode,
            prefill,
            router,
            model: model.to_owned(),
            _lan: lan,
            _turn: turn,
        }
    }

    fn hosts(&self) -> impl Iterator<Item = &Host> {
        let workers = [&self.prefill, &self.decode[0], &self.decode[1]];
        [&self.router]
            .into_iter()
            .chain(workers)
            .map(|seat| &seat.host)
    }

    /// Waits until some decode worker is as wanted; its number.
    async fn which(&self, wanted: impl Fn(&WorkerLoad) -> bool) -> usize {
        let begin = Instant::now();
        loop {
            for (index, seat) in self.decode.iter().enumerate() {
                if seat.load().await.is_some_and(|load| wanted(&load)) {
                    return index;
                }
            }
            assert!(begin.elapsed() < PATIENCE, "no decode worker came to it");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// What the request gets when nothing happens.
    async fn undisturbed(&self, request: &GenerateRequest) -> Answer {
        let answer = self.client.generate(salted(request, "undisturbed")).await;
        let answer = answer.expect("an answer");
        self.client.assert_idle().await;
        answer
    }

    /// All workers are back and hold nothing.
    async fn recovered(&self) {
        self.client.until_ready(3).await;
        self.client.assert_idle().await;
        for seat in [&self.prefill, &self.decode[0], &self.decode[1]] {
            // The connection of before may be broken.
            let again = WorkerClient::connect(seat.process.address()).await;
            again.when("idle", is_idle).await;
        }
    }
}

fn start(
    host: &Host,
    role: &str,
    model: &Path,
    flags: impl IntoIterator<Item = (String, String)>,
) -> Process {
    let mut arguments: Vec<String> = vec![role.into(), "--model".into()];
    arguments.push(model.display().to_string());
    arguments.extend(flags.into_iter().flat_map(|(flag, value)| [flag, value]));
    // Starting blocks until the process is ready.
    tokio::task::block_in_place(|| Process::start_in(host.namespace(), &arguments))
}

async fn worker(
    host: &Host,
    role: &str,
    name: &str,
    model: &Path,
    router: &str,
    port: u16,
) -> Seat {
    let listen = format!("{}:{port}", host.address());
    let flags = [
        ("--worker-id", name),
        ("--router", router),
        ("--listen", listen.as_str()),
        ("--threads", "1"),
        ("--pages", "512"),
        ("--token-budget", "128"),
        ("--transport", "tcp"),
        OPEN,
    ]
    .map(|(flag, value)| (flag.to_owned(), value.to_owned()));
    let process = start(host, role, model, flags);
    Seat {
        client: Some(WorkerClient::connect(process.address()).await),
        process,
        host: host.clone(),
    }
}

/// Sampled, with log-probabilities.
fn request(seed: u64, prompt: usize, tokens: u32) -> GenerateRequest {
    with(endless(tiny_prompt(seed, prompt), tokens), |sampling| {
        sampling.temperature = Some(0.7);
        sampling.seed = Some(seed);
        sampling.logprobs = Some(1);
    })
}

fn salted(request: &GenerateRequest, salt: &str) -> GenerateRequest {
    GenerateRequest {
        cache_salt: salt.into(),
        ..request.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_networks, ignore = "no networks of its own here")]
async fn rte_06_a_decode_worker_cut_off_mid_stream_costs_no_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::start(&slow_model(folder.path()), 0).await;
    let request = request(1, 300, 200);
    let expected = site.undisturbed(&request).await;
    let mut events = site.client.open(request).await;
    let mut answer = Answer::default();
    for _ in 0..10 {
        answer.take(events.message().await.expect("running").expect("more"));
    }
    let lost = site.which(|load| load.running > 0).await;
    site.decode[lost].host.cut();
    let begin = Instant::now();
    let answer = tokio::time::timeout(PATIENCE, rest(events, answer))
        .await
        .expect("an end in time")
        .expect("the other one goes on");
    println!("over {:?} after the cut", begin.elapsed());
    assert_eq!(answer.essence(), expected.essence());
    assert!(answer.receipt().attempts.len() > 1, "{answer:?}");
    // It learns of it without a word from anybody.
    let took = site.decode[lost].idle_by_itself();
    println!("the one that was cut off: idle after {took:?} more");
    site.decode[lost].host.heal();
    site.recovered().await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_networks, ignore = "no networks of its own here")]
async fn xfr_04_a_black_hole_under_a_transfer_leaves_no_page_granted() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::start(&slow_model(folder.path()), 0).await;
    let request = request(2, 1500, 16);
    let expected = site.undisturbed(&request).await;
    let (answer, lost) = tokio::join!(site.client.generate(request), async {
        let lost = site.which(|load| ledger(load).granted > 0).await;
        site.decode[lost].host.cut();
        lost
    });
    let answer = answer.expect("the other one gets the pages");
    assert_eq!(answer.essence(), expected.essence());
    assert!(answer.receipt().attempts.len() > 1, "{answer:?}");
    // While packets still vanish: the lease alone gives the pages back.
    let took = site.decode[lost].idle_by_itself();
    println!("the receiver that was cut off: idle after {took:?} more");
    site.prefill.worker().when("idle", is_idle).await;
    site.decode[lost].host.heal();
    site.recovered().await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_networks, ignore = "no networks of its own here")]
async fn xfr_06_a_prefill_worker_cut_off_during_a_transfer_costs_no_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::start(&slow_model(folder.path()), 0).await;
    let request = request(3, 1500, 16);
    let expected = site.undisturbed(&request).await;
    let (answer, ()) = tokio::join!(site.client.generate(request), async {
        site.which(|load| ledger(load).granted > 0).await;
        site.prefill.host.cut();
    });
    let answer = answer.expect("decode workers can prefill");
    assert_eq!(answer.essence(), expected.essence());
    assert!(answer.receipt().attempts.len() > 1, "{answer:?}");
    for seat in &site.decode {
        seat.worker().within(ABANDONED, "idle", is_idle).await;
    }
    let took = site.prefill.idle_by_itself();
    println!("the sender that was cut off: idle after {took:?} more");
    site.prefill.host.heal();
    site.recovered().await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_networks, ignore = "no networks of its own here")]
async fn xfr_05_a_router_cut_off_mid_stream_leaves_nothing_and_takes_up_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::start(&slow_model(folder.path()), 0).await;
    let request = request(4, 300, 400);
    let expected = site.undisturbed(&request).await;
    let mut events = site.client.open(request).await;
    let mut answer = Answer::default();
    answer.take(events.message().await.expect("running").expect("more"));
    site.router.host.cut();
    for seat in [&site.prefill, &site.decode[0], &site.decode[1]] {
        seat.worker().within(ABANDONED, "idle", is_idle).await;
    }
    site.router.host.heal();
    let answer = tokio::time::timeout(PATIENCE, rest(events, answer))
        .await
        .expect("an end in time")
        .expect("within its patience the router finds them again");
    assert_eq!(answer.essence(), expected.essence());
    site.recovered().await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_networks, ignore = "no networks of its own here")]
#[cfg_attr(no_slow_links, ignore = "no links of a given rate here")]
async fn xfr_16_a_transfer_of_twice_its_lease_lands_whole() {
    /// Fourteen megabytes or so take ten seconds.
    const KILOBITS: u32 = 11_000;
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::start(&slow_model(folder.path()), 0).await;
    let request = request(5, 1700, 16);
    let expected = site.undisturbed(&request).await;
    let slowed = site.prefill.host.slow_down(KILOBITS);
    slowed.unwrap_or_else(|why| panic!("{PROBED}: {why}"));
    let answer = site.client.generate(request).await.expect("an answer");
    assert_eq!(answer.essence(), expected.essence());
    let receipt = answer.receipt();
    println!("transferred in {} ms", receipt.transfer_us / 1000);
    assert_eq!(receipt.attempts.len(), 1, "slow is not lost: {receipt:?}");
    assert!(receipt.transfer_us > 5_000_000, "not slow: {receipt:?}");
    site.recovered().await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_networks, ignore = "no networks of its own here")]
async fn requests_over_links_that_lose_packets_are_exact() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::start(&slow_model(folder.path()), 0).await;
    let mut expected = Vec::new();
    for seed in 0..4 {
        expected.push(site.undisturbed(&request(seed, 500, 30)).await);
    }
    for host in site.hosts() {
        host.lose(0.02);
    }
    all_exact(&site, &expected).await;
    for host in site.hosts() {
        host.heal();
    }
    site.recovered().await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_networks, ignore = "no networks of its own here")]
#[cfg_attr(no_long_links, ignore = "no links that take their time here")]
async fn requests_over_long_links_are_exact() {
    let folder = tempfile::tempdir().expect("a folder");
    // Fifty milliseconds to the bridge, a hundred to the next host.
    let site = Site::start(&slow_model(folder.path()), 50).await;
    let mut expected = Vec::new();
    for seed in 0..4 {
        expected.push(site.undisturbed(&request(seed, 500, 30)).await);
    }
    all_exact(&site, &expected).await;
    site.recovered().await;
}

/// The requests whose answers these were, all at once.
async fn all_exact(site: &Site, expected: &[Answer]) {
    let begin = Instant::now();
    let calls = (0_u64..).zip(expected).map(|(seed, _)| {
        let request = salted(&request(seed, 500, 30), "all at once");
        site.client.generate(request)
    });
    for (answer, expected) in join_all(calls).await.iter().zip(expected) {
        let answer = answer.as_ref().expect("no request fails");
        assert_eq!(answer.essence(), expected.essence());
    }
    println!("{} requests in {:?}", expected.len(), begin.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_networks, ignore = "no networks of its own here")]
async fn dsc_07_half_open_connections_to_an_address_taken_over_by_another_role() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut site = Site::start(&slow_model(folder.path()), 0).await;
    let request = request(7, 500, 20);
    let expected = site.undisturbed(&request).await;
    let exact = async |site: &Site, salt: &str| {
        let answer = site.client.generate(salted(&request, salt)).await;
        let answer = answer.expect("no request fails");
        assert_eq!(answer.essence(), expected.essence());
        assert_eq!(answer.workers().1, "decode-1", "{salt}");
    };
    // Its end reaches nobody: the others' connections stay half open.
    let seat = &mut site.decode[0];
    seat.host.cut();
    seat.process.signal("KILL");
    seat.process.wait();
    for round in 0..3 {
        exact(&site, &format!("half open {round}")).await;
    }
    let seat = &site.decode[0];
    let port = seat.process.address().rsplit_once(':').expect("a port").1;
    let port: u16 = port.parse().expect("a port");
    seat.host.heal();
    let router = site.router.process.address();
    let taken = worker(
        &seat.host,
        "prefill",
        "prefill-1",
        &site.model,
        router,
        port,
    )
    .await;
    for round in 0..6 {
        exact(&site, &format!("taken over {round}")).await;
    }
    site.client.until_ready(3).await;
    let answer = site.client.generate(salted(&request, "after")).await;
    assert_eq!(answer.expect("an answer").essence(), expected.essence());
    site.client.assert_idle().await;
    for seat in [&taken, &site.prefill, &site.decode[1]] {
        seat.worker().when("idle", is_idle).await;
    }
}
