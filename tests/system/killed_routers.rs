//! Routers that die or fall silent between the two legs: workers learn of it by themselves and give back
//! what they hold.

use std::time::{Duration, Instant};

use crate::client::{Client, WorkerClient, is_idle, ledger};
use crate::models::{endless, slow_model, tiny_prompt};
use crate::process::baton;

use crate::service::Trio;

/// Longest time until a worker is idle after its router was killed: the kernel closes the connections.
const AFTER_DEATH: Duration = Duration::from_secs(3);
/// The same after the router fell silent: keep-alive takes about two seconds to tell.
const AFTER_SILENCE: Duration = Duration::from_secs(10);

/// Sends a request that nobody waits for.
fn send(client: &Client, seed: u64) -> tokio::task::JoinHandle<()> {
    let mut client = client.inference();
    let request = endless(tiny_prompt(seed, 1800), 50);
    tokio::spawn(async move {
        if let Ok(response) = client.generate(request).await {
            let mut events = response.into_inner();
            while let Ok(Some(_)) = events.message().await {}
        }
    })
}

async fn assert_serves(trio: &Trio) {
    trio.client.until_ready(2).await;
    let answer = trio.client.generate(endless(tiny_prompt(9, 300), 5)).await;
    assert_eq!(
        answer.expect("an answer").workers(),
        ("prefill-0", "decode-0")
    );
    trio.client.assert_idle().await;
}

/// The same router again, at the same address.
async fn start_again(trio: &mut Trio) {
    let address = trio.router.address().to_owned();
    let router = trio.roles.router(&["--listen", &address]);
    // The old one is gone already.
    std::mem::replace(&mut trio.router, router).wait();
    trio.client = Client::connect(&address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_05_a_router_that_dies_during_a_transfer_frees_both_workers() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    for transport in ["shm", "tcp"] {
        let flags = ["--transport", transport, "--pages", "1024"];
        let mut trio = Trio::start(&model, &flags).await;
        let (prefill, decode) = trio.workers().await;
        let sent = send(&trio.client, 1);
        decode
            .when("receiving", |load| ledger(load).granted > 0)
            .await;
        assert!(ledger(&prefill.load().await).live > 0);
        let begin = Instant::now();
        trio.router.signal("KILL");
        prefill.within(AFTER_DEATH, "idle", is_idle).await;
        decode.within(AFTER_DEATH, "idle", is_idle).await;
        println!("{transport}: idle after {:?}", begin.elapsed());
        sent.await.expect("the client has its end");
        start_again(&mut trio).await;
        assert_serves(&trio).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_05_a_router_that_falls_silent_during_a_transfer_frees_both_workers() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    for transport in ["shm", "tcp"] {
        let flags = ["--transport", transport, "--pages", "1024"];
        let trio = Trio::start(&model, &flags).await;
        let (prefill, decode) = trio.workers().await;
        let sent = send(&trio.client, 1);
        decode
            .when("receiving", |load| ledger(load).granted > 0)
            .await;
        let begin = Instant::now();
        trio.router.signal("STOP");
        prefill.within(AFTER_SILENCE, "idle", is_idle).await;
        decode.within(AFTER_SILENCE, "idle", is_idle).await;
        println!("{transport}: idle after {:?}", begin.elapsed());
        trio.router.signal("CONT");
        // The router takes up where it was: the request is retried or ends with an error, and ends.
        tokio::time::timeout(crate::process::PATIENCE, sent)
            .await
            .expect("the client has its end")
            .expect("sending does not fail");
        assert_serves(&trio).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_05_a_router_that_dies_before_any_grant_frees_the_prefill_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    let mut trio = Trio::start(&model, &["--pages", "1024"]).await;
    let prefill = WorkerClient::connect(trio.prefill.address()).await;
    // A decode worker that answers nothing gives no grant: computed pages wait.
    trio.decode.signal("STOP");
    let sent = send(&trio.client, 2);
    prefill
        .when("prefilling", |load| ledger(load).live > 0)
        .await;
    trio.router.signal("KILL");
    prefill.within(AFTER_DEATH, "idle", is_idle).await;
    sent.await.expect("the client has its end");
    trio.decode.signal("CONT");
    let decode = WorkerClient::connect(trio.decode.address()).await;
    decode.when("idle", is_idle).await;
    start_again(&mut trio).await;
    assert_serves(&trio).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_dies_mid_stream_ends_the_sequences_on_its_decode_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    let mut trio = Trio::start(&model, &["--pages", "1024"]).await;
    let (_, decode) = trio.workers().await;
    let mut events = trio.client.open(endless(tiny_prompt(3, 300), 3000)).await;
    for _ in 0..5 {
        events.message().await.expect("running").expect("more");
    }
    assert!(decode.load().await.running > 0);
    trio.router.signal("KILL");
    let end = async {
        loop {
            match events.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended as if it were complete"),
                Err(status) => return status,
            }
        }
    };
    let status = tokio::time::timeout(crate::process::PATIENCE, end)
        .await
        .expect("an end in time");
    println!("the client sees {status:?}");
    decode.within(AFTER_DEATH, "idle", is_idle).await;
    start_again(&mut trio).await;
    assert_serves(&trio).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_says_that_its_router_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let trio = Trio::start(&slow_model(folder.path()), &[]).await;
    let (_, decode) = trio.workers().await;
    let address = trio.router.address().to_owned();
    let client = tokio::task::spawn_blocking(move || {
        let request = ["--prompt", "x", "--max-tokens", "3000", "--ignore-eos"];
        baton(&[&["generate", "--connect", &address], &request[..]].concat())
    });
    decode.when("decoding", |load| load.running > 0).await;
    trio.router.signal("KILL");
    let ended = client.await.expect("it ends");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let words = "UNAVAILABLE: the connection to the router was lost";
    assert!(ended.stderr.contains(words), "{ended:?}");
    decode.within(AFTER_DEATH, "idle", is_idle).await;
}
