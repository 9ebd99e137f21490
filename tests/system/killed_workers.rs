//! Workers that are killed, at the worst moments: no token is lost or changed, no page is kept, and nobody
//! else goes down.

use std::time::Duration;

use baton_proto::v1::{GenerateResponse, PageLedger, WorkerRole};
use tonic::{Code, Streaming};

use crate::answer::Answer;
use crate::client::{Client, WorkerClient, is_idle, ledger, rest};
use crate::models::{by_ids, endless, slow_model, tiny_model, tiny_prompt, with};
use crate::process::{PATIENCE, signal, soak};
use crate::service::{Roles, Setup, Trio};

/// Waits until the pages of some worker of this role look as wanted; gives its name and process id.
async fn when(
    client: &Client,
    role: WorkerRole,
    wanted: impl Fn(&PageLedger) -> bool,
) -> (String, u32) {
    let begin = std::time::Instant::now();
    loop {
        for worker in client.status().await.workers {
            let (Some(info), Some(load)) = (worker.info, worker.load) else {
                continue;
            };
            if info.role() == role && load.pages.as_ref().is_some_and(&wanted) {
                return (info.worker_id, info.pid);
            }
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "no {role:?} worker came into the wanted state"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Sends a long prompt and kills a worker of this role while its pages are under way.
async fn with_one_killed(
    client: &Client,
    role: WorkerRole,
    prompt: &[u32],
) -> Result<Answer, tonic::Status> {
    let kill = async {
        when(client, WorkerRole::Decode, |pages| pages.granted > 0).await;
        let (_, pid) = when(client, role, |pages| pages.live + pages.granted > 0).await;
        signal(pid, "KILL");
    };
    let request = with(endless(prompt.to_vec(), 12), |sampling| {
        sampling.prompt_logprobs = Some(2);
    });
    let (answer, ()) = tokio::join!(client.generate(request), kill);
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_07_a_prefill_worker_killed_while_computing_costs_no_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&slow_model(folder.path()))
        .flag("--prefill", 2)
        .flag("--pages", 1024)
        .start()
        .await;
    let undisturbed = |salt: &str| {
        let mut request = with(endless(tiny_prompt(7, 1800), 12), |sampling| {
            sampling.prompt_logprobs = Some(2);
        });
        request.cache_salt = salt.into();
        service.generate(request)
    };
    let expected = undisturbed("another tenant").await.expect("an answer");
    service.assert_idle().await;
    let answer = with_one_killed(&service, WorkerRole::Prefill, &tiny_prompt(7, 1800))
        .await
        .expect("the other prefill worker computes it");
    assert_eq!(answer.choices, expected.choices);
    assert_eq!(expected.prompt.logprobs.len(), 1799);
    assert_eq!(answer.prompt, expected.prompt, "each once, and the same");
    let attempts = &answer.receipt().attempts;
    assert!(
        attempts.len() >= 2 && !attempts[0].failure.is_empty(),
        "{attempts:?}"
    );
    let after = undisturbed("a third").await.expect("an answer");
    assert_eq!(after.choices, expected.choices);
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_prefill_worker_the_decode_worker_prefills() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path()))
        .flag("--prefill", 0)
        .start()
        .await;
    let answer = service
        .generate(by_ids(tiny_prompt(1, 300), 8))
        .await
        .expect("an answer");
    assert_eq!(answer.workers(), ("", "decode-0"));
    let attempt = answer.receipt().attempts.last().expect("an attempt");
    assert!(attempt.reason.contains("prefill"), "{attempt:?}");
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_killed_before_landing_costs_no_token() {
    let folder = tempfile::tempdir().expect("a folder");
    for transport in ["shm", "tcp"] {
        let service = Setup::new(&slow_model(folder.path()))
            .flag("--decode", 2)
            .flag("--pages", 1024)
            .flag("--transport", transport)
            .start()
            .await;
        let mut request = with(endless(tiny_prompt(8, 1800), 12), |sampling| {
            sampling.prompt_logprobs = Some(2);
        });
        request.cache_salt = "another tenant".into();
        let expected = service.generate(request).await.expect("undisturbed");
        service.assert_idle().await;
        let answer = with_one_killed(&service, WorkerRole::Decode, &tiny_prompt(8, 1800))
            .await
            .expect("the other decode worker gets the pages");
        assert_eq!(answer.choices, expected.choices, "{transport}");
        assert_eq!(answer.prompt, expected.prompt, "{transport}");
        assert!(
            answer.receipt().attempts.len() >= 2,
            "{:?}",
            answer.receipt()
        );
        service.assert_idle().await;
    }
}

/// Five events of a stream.
async fn some(events: &mut Streaming<GenerateResponse>) -> Answer {
    let mut answer = Answer::default();
    for _ in 0..5 {
        answer.take(events.message().await.expect("a token").expect("a token"));
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn str_04_a_decode_worker_killed_mid_stream_hands_over_to_its_successor() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&slow_model(folder.path()))
        .flag("--pages", 1024)
        .start()
        .await;
    let request = endless(tiny_prompt(3, 100), 400);
    let expected = service.generate(request.clone()).await.expect("an answer");
    let pids = service.pids().await;
    let mut events = service.open(request).await;
    let answer = some(&mut events).await;
    signal(pids["decode-0"], "KILL");
    let answer = tokio::time::timeout(PATIENCE, rest(events, answer))
        .await
        .expect("an end in time")
        .expect("the supervisor starts another one");
    assert_eq!(answer.essence(), expected.essence());
    let last = answer.receipt().attempts.last().expect("an attempt");
    assert!(last.kept_tokens >= 5, "{:?}", answer.receipt());
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn str_04_a_decode_worker_killed_for_good_is_an_error_and_not_an_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    let trio = Trio::start_with(&model, &["--grant-wait-ms", "300"], &["--pages", "1024"]).await;
    let mut events = trio.client.open(endless(tiny_prompt(3, 100), 3000)).await;
    let answer = some(&mut events).await;
    trio.decode.signal("KILL");
    let status = tokio::time::timeout(PATIENCE, rest(events, answer))
        .await
        .expect("an end in time")
        .expect_err("half an answer is no answer");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(
        status.message().contains("decode-0 was lost after"),
        "{status:?}"
    );
    let prefill = WorkerClient::connect(trio.prefill.address()).await;
    prefill.when("idle", is_idle).await;
    trio.client.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_24_prefill_workers_that_die_never_take_the_decode_worker_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    for transport in ["shm", "tcp"] {
        let flags = ["--transport", transport, "--pages", "1024"];
        let mut trio = Trio::start(&model, &flags).await;
        let decode = WorkerClient::connect(trio.decode.address()).await;
        let prompt = tiny_prompt(24, 1500);
        let mut reference = endless(prompt.clone(), 8);
        reference.cache_salt = "reference".into();
        let expected = trio.client.generate(reference).await.expect("an answer");
        for round in 0..if soak() { 50 } else { 3 } {
            // A salt of its own, so that every round moves pages.
            let mut request = endless(prompt.clone(), 8);
            request.cache_salt = format!("round {round}");
            let fault = async {
                decode
                    .when("receiving", |load| ledger(load).granted > 0)
                    .await;
                trio.prefill.signal("KILL");
            };
            let (answer, ()) = tokio::join!(trio.client.generate(request.clone()), fault);
            let answer = answer.expect("the decode worker prefills itself");
            assert_eq!(answer.choices, expected.choices);
            assert!(
                answer.receipt().attempts.len() > 1,
                "{:?}",
                answer.receipt()
            );
            trio.prefill.wait();
            trio.prefill = trio.roles.worker("prefill", &trio.router, &flags);
            let again = trio
                .client
                .generate(endless(tiny_prompt(round, 200), 4))
                .await;
            let again = again.expect("the new one serves");
            assert_eq!(again.workers(), ("prefill-0", "decode-0"));
        }
        // The same process from beginning to end.
        decode.when("idle", is_idle).await;
        trio.client.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_04_a_cancel_and_a_killed_sender_at_once_leave_no_page_granted() {
    /// Longest time until pages without owner are free again: the transfer's lease and some more.
    const LIMIT: Duration = Duration::from_secs(10);
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    for transport in ["shm", "tcp"] {
        let flags = ["--transport", transport, "--pages", "1024"];
        let mut trio = Trio::start(&model, &flags).await;
        let decode = WorkerClient::connect(trio.decode.address()).await;
        for round in 0..if soak() { 50 } else { 4 } {
            let prompt = tiny_prompt(round, 1500);
            let events = trio.client.open(endless(prompt, 8)).await;
            decode
                .when("receiving", |load| ledger(load).granted > 0)
                .await;
            if round % 2 == 0 {
                drop(events);
                trio.prefill.signal("KILL");
            } else {
                trio.prefill.signal("KILL");
                drop(events);
            }
            decode.within(LIMIT, "idle", is_idle).await;
            trio.prefill.wait();
            trio.prefill = trio.roles.worker("prefill", &trio.router, &flags);
        }
        let answer = trio.client.generate(endless(tiny_prompt(77, 300), 8)).await;
        assert_eq!(
            answer.expect("still serving").workers(),
            ("prefill-0", "decode-0")
        );
        trio.client.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_04_a_sender_that_falls_silent_costs_its_grant_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    for transport in ["shm", "tcp"] {
        let flags = ["--transport", transport, "--pages", "1024"];
        let trio = Trio::start(&model, &flags).await;
        let (prefill, decode) = trio.workers().await;
        let events = trio.client.open(endless(tiny_prompt(4, 1500), 8)).await;
        decode
            .when("receiving", |load| ledger(load).granted > 0)
            .await;
        trio.prefill.signal("STOP");
        drop(events);
        let load = decode
            .within(Duration::from_secs(10), "rid of the grant", |load| {
                let pages = ledger(load);
                load.running + load.queued + pages.live + pages.granted == 0
            })
            .await;
        // A stopped process that has mapped the pool might still write; a socket's end cannot.
        assert!(transport == "shm" || is_idle(&load), "{load:?}");
        // Others are served meanwhile.
        let answer = trio.client.generate(endless(tiny_prompt(5, 300), 8)).await;
        assert_eq!(answer.expect("prefilled locally").workers().1, "decode-0");
        trio.prefill.signal("CONT");
        prefill.when("idle", is_idle).await;
        decode.when("idle", is_idle).await;
        trio.client.until_ready(2).await;
        let answer = trio.client.generate(endless(tiny_prompt(6, 300), 8)).await;
        assert_eq!(answer.expect("split again").receipt().transport, transport);
        trio.client.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_09_a_prefill_worker_replaced_at_its_address_costs_one_request_at_most() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path());
    for transport in ["shm", "tcp"] {
        let mut trio = Trio::start(&model, &["--transport", transport]).await;
        let address = trio.prefill.address().to_owned();
        let decode = WorkerClient::connect(trio.decode.address()).await;
        let request = |seed| endless(tiny_prompt(seed, 300), 8);
        let before = trio.client.generate(request(0)).await.expect("an answer");
        assert_eq!(before.receipt().transport, transport);
        for round in 1..=2 {
            trio.prefill.signal("KILL");
            trio.prefill.wait();
            let flags = ["--listen", &address, "--transport", transport];
            trio.prefill = trio.roles.worker("prefill", &trio.router, &flags);
            assert_eq!(trio.prefill.address(), address, "the same address");
            let mut retried = 0;
            for seed in 0..10 {
                let answer = trio.client.generate(request(round * 100 + seed)).await;
                let answer = answer.expect("nobody is asked who is gone");
                let attempts = answer.receipt().attempts.len();
                retried += usize::from(attempts > 1);
                assert!(attempts == 1 || seed == 0, "{:?}", answer.receipt());
                assert_eq!(answer.receipt().transport, transport);
            }
            assert!(retried <= 1);
        }
        let again = trio.client.generate(request(0)).await.expect("an answer");
        assert_eq!(again.choices, before.choices);
        decode.when("idle", is_idle).await;
        trio.client.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_09_a_decode_worker_replaced_at_its_address_is_found_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path());
    let roles = Roles::new(&model);
    let router = roles.router(&[]);
    let _prefill = roles.worker("prefill", &router, &[]);
    let mut decode = roles.worker("decode", &router, &[]);
    let address = decode.address().to_owned();
    let client = Client::connect(router.address()).await;
    let request = endless(tiny_prompt(1, 300), 8);
    let before = client.generate(request.clone()).await.expect("an answer");
    decode.signal("KILL");
    decode.wait();
    decode = roles.worker("decode", &router, &["--listen", &address]);
    for _ in 0..5 {
        let answer = client.generate(request.clone()).await.expect("an answer");
        assert_eq!(answer.choices, before.choices);
        assert_eq!(answer.workers().1, "decode-0");
    }
    client.assert_idle().await;
    drop(decode);
}
