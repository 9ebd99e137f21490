//! Workers and routers that are asked to end: what runs goes on, nothing new comes, and what cannot end in
//! time is told as an error.

use std::time::Duration;

use baton_proto::v1::generate_response::Event;
use tonic::Code;

use crate::answer::Answer;
use crate::client::{Client, WorkerClient, is_idle, rest};
use crate::models::{endless, slow_model, tiny_model, tiny_prompt};
use crate::process::baton;
use crate::service::{Roles, Setup, Trio};

#[tokio::test(flavor = "multi_thread")]
async fn str_05_a_drained_worker_finishes_its_streams_and_takes_no_new_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&slow_model(folder.path()))
        .flag("--decode", 2)
        .flag("--pages", 1024)
        .flag("--local-prefill-tokens", 0)
        .start()
        .await;
    let long = endless(tiny_prompt(1, 100), 500);
    let expected = service.generate(long.clone()).await.expect("an answer");

    let mut events = service.open(long.clone()).await;
    let mut answer = Answer::default();
    for _ in 0..5 {
        answer.take(events.message().await.expect("running").expect("more"));
    }
    let status = service.status().await;
    let busy = status.workers.iter().find(|worker| {
        worker.in_flight > 0
            && worker
                .info
                .as_ref()
                .is_some_and(|i| i.worker_id.starts_with("decode"))
    });
    let busy = busy
        .and_then(|worker| worker.info.clone())
        .expect("somebody runs it");
    let other = ["decode-1", "decode-0"][usize::from(busy.worker_id == "decode-1")];
    let drain = |name: &str| baton(&["drain", name, "--connect", &service.address]);
    let drained = drain(&busy.worker_id);
    assert_eq!(drained.code, Some(0), "{drained:?}");
    assert!(
        drained.stdout.contains("1 requests still run"),
        "{drained:?}"
    );

    for seed in 0..4 {
        let short = service.generate(endless(tiny_prompt(seed, 80), 4)).await;
        assert_eq!(short.expect("the other takes it").workers().1, other);
    }
    let answer = rest(events, answer).await.expect("drained, not cut off");
    assert_eq!(answer.essence(), expected.essence());
    assert_eq!(answer.workers().1, busy.worker_id);

    let nobody = drain("decode-7");
    assert_eq!(nobody.code, Some(3), "{nobody:?}");
    assert!(nobody.stderr.contains("NOT_FOUND"), "{nobody:?}");
    assert_eq!(drain(other).code, Some(0));
    let refused = service.generate(long).await.expect_err("all drain");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn str_05_a_stream_that_nobody_takes_over_at_the_drain_limit_ends_with_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    let flags = ["--drain-limit-ms", "100", "--pages", "1024"];
    let mut trio = Trio::start_with(&model, &["--grant-wait-ms", "300"], &flags).await;
    let mut events = trio.client.open(endless(tiny_prompt(1, 100), 3900)).await;
    let mut got = 0;
    while got < 5 {
        events.message().await.expect("running").expect("more");
        got += 1;
    }
    trio.decode.signal("TERM");
    let end = async {
        loop {
            match events.message().await {
                Ok(Some(response)) => {
                    let event = response.event.expect("an event");
                    assert!(matches!(event, Event::Token(_)), "{event:?} after an abort");
                }
                Ok(None) => panic!("the stream ended as if it were complete"),
                Err(status) => return status,
            }
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(10), end)
        .await
        .expect("the limit holds");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(
        status.message().contains("ended before this request"),
        "{status:?}"
    );
    assert!(trio.decode.wait().success(), "{}", trio.decode.log());
    assert_eq!(trio.client.counter("requests_ok").await, 0);
    assert_eq!(trio.client.counter("requests_unavailable").await, 1);
    let prefill = WorkerClient::connect(trio.prefill.address()).await;
    prefill.when("idle", is_idle).await;

    // Another one in its place serves.
    let decode = trio
        .roles
        .worker("decode", &trio.router, &["--pages", "1024"]);
    let answer = trio.client.generate(endless(tiny_prompt(2, 100), 5)).await;
    assert_eq!(answer.expect("an answer").ids().len(), 5);
    trio.client.assert_idle().await;
    drop(decode);
}

#[tokio::test(flavor = "multi_thread")]
async fn str_05_the_command_line_tells_an_abort_as_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    let flags = ["--drain-limit-ms", "0", "--pages", "1024"];
    let trio = Trio::start_with(&model, &["--grant-wait-ms", "300"], &flags).await;
    let address = trio.router.address().to_owned();
    let ids = tiny_prompt(1, 100)
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let generating = tokio::task::spawn_blocking(move || {
        baton(&[
            "generate",
            "--connect",
            &address,
            "--token-ids",
            &ids,
            "--ignore-eos",
            "--max-tokens",
            "3900",
            "--format",
            "json",
        ])
    });
    let (prefill, decode) = trio.workers().await;
    decode.when("decoding", |load| load.running > 0).await;
    trio.decode.signal("TERM");
    let ended = generating.await.expect("it ends");
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let last = ended.stdout.lines().last().expect("an event");
    let last: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(last["event"], "error", "{last}");
    assert_eq!(last["code"], "UNAVAILABLE", "{last}");
    assert!(!ended.stdout.contains("\"done\"") && !ended.stdout.contains("\"finished\""));
    prefill.when("idle", is_idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_told_to_end_finishes_its_streams_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut service = Setup::new(&tiny_model(folder.path())).start().await;
    let request = endless(tiny_prompt(1, 100), 1500);
    let expected = service.generate(request.clone()).await.expect("an answer");
    let mut events = service.open(request).await;
    let mut answer = Answer::default();
    answer.take(events.message().await.expect("running").expect("more"));
    service.process.signal("TERM");
    let answer = rest(events, answer).await.expect("drained, not cut off");
    assert_eq!(answer.essence(), expected.essence());
    assert!(service.process.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_is_told_to_end_refuses_and_finishes() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&slow_model(folder.path()));
    let mut router = roles.router(&[]);
    let decode = roles.worker("decode", &router, &["--pages", "1024"]);
    let client = Client::connect(router.address()).await;
    let request = endless(tiny_prompt(1, 100), 300);
    let mut events = client.open(request).await;
    let mut answer = Answer::default();
    answer.take(events.message().await.expect("running").expect("more"));
    router.signal("TERM");
    // Refused with a code that tells clients to go elsewhere, as soon as the signal has arrived.
    let refused = async {
        loop {
            match client.generate(endless(tiny_prompt(2, 10), 1)).await {
                Ok(_) => {}
                Err(status) => return status,
            }
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(10), refused)
        .await
        .expect("it closes its door");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let answer = rest(events, answer).await.expect("finished");
    assert_eq!(answer.ids().len(), 300);
    assert!(router.wait().success(), "{}", router.log());
    let decode_client = WorkerClient::connect(decode.address()).await;
    decode_client.when("idle", is_idle).await;
}
