//! Workers and routers that are asked to end: what runs goes on, nothing new comes, and what cannot end in
//! time is told as an error.

#![expect(
    clippy::float_cmp,
    reason = "counts are whole numbers, which floats hold exactly"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use baton_proto::v1::WorkerRole;
use baton_proto::v1::generate_response::Event;
use tonic::Code;

use crate::answer::Answer;
use crate::client::{Client, WorkerClient, is_idle, rest};
use crate::health::Health;
use crate::http::curl;
use crate::models::{endless, slow_model, tiny_model, tiny_prompt};
use crate::process::{PATIENCE, Process, baton};
use crate::scrape::Scrape;
use crate::service::{Roles, Setup, Trio};

/// A request over HTTP/1.1 on a connection that is kept; the answer's status line.
fn complete(kept: &mut BufReader<TcpStream>, seed: u64) -> String {
    let prompt = tiny_prompt(seed, 30);
    let body = format!("{{\"prompt\": {prompt:?}, \"max_tokens\": 4, \"ignore_eos\": true}}");
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let asked = kept.get_mut().write_all(request.as_bytes());
    asked.expect("the connection is open");
    let (mut status, mut length) = (String::new(), 0);
    kept.read_line(&mut status).expect("an answer");
    loop {
        let mut line = String::new();
        kept.read_line(&mut line).expect("a head");
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(said) = line.strip_prefix("content-length:") {
            length = said.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    kept.read_exact(&mut body).expect("a body");
    status
}

/// A second decode worker beside a trio's.
fn second(trio: &Trio, flags: &[&str]) -> Process {
    let all = [&["--worker-id", "decode-1"], flags].concat();
    trio.roles.worker("decode", &trio.router, &all)
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_a_drained_worker_finishes_its_streams_takes_no_new_ones_and_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = ["--pages", "1024"];
    let mut trio = Trio::start(&slow_model(folder.path()), &flags).await;
    let mut other = second(&trio, &flags);
    let long = endless(tiny_prompt(1, 100), 500);
    let expected = trio.client.generate(long.clone()).await;
    let expected = expected.expect("an answer");

    let mut events = trio.client.open(long.clone()).await;
    let mut answer = Answer::default();
    for _ in 0..5 {
        answer.take(events.message().await.expect("running").expect("more"));
    }
    let status = trio.client.status().await;
    let busy = status.workers.iter().find(|worker| {
        let info = worker.info.as_ref();
        worker.in_flight > 0 && info.is_some_and(|info| info.role() == WorkerRole::Decode)
    });
    let busy = busy
        .and_then(|worker| worker.info.clone())
        .expect("somebody runs it");
    let is_first = busy.worker_id == "decode-0";
    let free = if is_first { "decode-1" } else { "decode-0" };
    let router = trio.router.address().to_owned();
    let drain = |name: &str| baton(&["drain", name, "--connect", &router]);
    let drained = drain(&busy.worker_id);
    assert_eq!(drained.code, Some(0), "{drained:?}");
    let told = "1 requests still run there";
    assert!(drained.stdout.contains(told), "{drained:?}");
    let health = Health::connect(&busy.address).await;
    assert!(!health.is_serving("ready").await && health.is_serving("live").await);

    for seed in 0..4 {
        let short = trio
            .client
            .generate(endless(tiny_prompt(seed, 80), 4))
            .await;
        assert_eq!(short.expect("the other takes it").workers().1, free);
    }
    let answer = rest(events, answer).await.expect("drained, not cut off");
    assert_eq!(answer.essence(), expected.essence());
    assert_eq!(answer.workers().1, busy.worker_id);
    let (ended, left) = if is_first {
        (&mut trio.decode, &mut other)
    } else {
        (&mut other, &mut trio.decode)
    };
    assert!(ended.wait().success(), "{}", ended.log());

    let nobody = drain("decode-7");
    assert_eq!(nobody.code, Some(3), "{nobody:?}");
    assert!(nobody.stderr.contains("NOT_FOUND"), "{nobody:?}");
    assert_eq!(drain(free).code, Some(0));
    assert!(left.wait().success(), "{}", left.log());
    let refused = trio.client.generate(long).await.expect_err("all have gone");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    trio.client.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_a_stream_longer_than_the_drain_limit_goes_on_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = ["--drain-limit-ms", "100", "--pages", "1024"];
    let mut trio = Trio::start(&slow_model(folder.path()), &flags).await;
    let request = endless(tiny_prompt(1, 100), 600);
    let expected = trio.client.generate(request.clone()).await;
    let expected = expected.expect("an answer");
    let mut events = trio.client.open(request).await;
    let mut answer = Answer::default();
    for _ in 0..5 {
        answer.take(events.message().await.expect("running").expect("more"));
    }
    let other = second(&trio, &flags);
    trio.decode.signal("TERM");
    let answer = rest(events, answer).await.expect("handed over");
    assert_eq!(answer.choices, expected.choices);
    assert_eq!(answer.workers().1, "decode-1");
    assert!(trio.decode.wait().success(), "{}", trio.decode.log());
    trio.client.assert_idle().await;
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_a_second_signal_ends_a_worker_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = ["--drain-limit-ms", "600000", "--pages", "1024"];
    let mut trio = Trio::start(&slow_model(folder.path()), &flags).await;
    let mut events = trio.client.open(endless(tiny_prompt(1, 100), 3900)).await;
    events.message().await.expect("running").expect("more");
    trio.decode.signal("TERM");
    let (_, decode) = trio.workers().await;
    decode.when("draining", |load| load.draining).await;
    trio.decode.signal("TERM");
    assert_eq!(trio.decode.wait().code(), Some(1), "{}", trio.decode.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_and_silent_connections_keep_nobody_from_ending() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut trio = Trio::start(&tiny_model(folder.path()), &["--drain-limit-ms", "200"]).await;
    let addresses = [&trio.router, &trio.decode, &trio.prefill].map(|process| {
        let address = process.address().to_owned();
        let silent = TcpStream::connect(&address).expect("a connection");
        (address, silent)
    });
    // One that has spoken, and then says nothing.
    let mut idle = Vec::new();
    for (address, _) in &addresses {
        idle.push(Health::connect(address).await);
    }
    for process in [&mut trio.decode, &mut trio.prefill, &mut trio.router] {
        process.signal("TERM");
        assert!(process.wait().success(), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn str_05_a_stream_that_nobody_takes_over_at_the_drain_limit_ends_with_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = slow_model(folder.path());
    let flags = ["--drain-limit-ms", "100", "--pages", "1024"];
    let router = ["--grant-wait-ms", "300", "--metrics-listen", "127.0.0.1:0"];
    let mut trio = Trio::start_with(&model, &router, &flags).await;
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
    let scrape = Scrape::of(trio.router.metrics());
    let ended = |labels: &[&str]| scrape.sum("baton_requests_total", labels);
    assert_eq!(ended(&["outcome=\"error\"", "code=\"unavailable\""]), 1.0);
    assert_eq!(ended(&[]), 1.0);
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
    let log = service.process.log();
    assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");
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

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_a_router_at_its_drain_limit_says_so_on_every_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&slow_model(folder.path()));
    let flags = ["--drain-limit-ms", "100", "--http-listen", "127.0.0.1:0"];
    let mut router = roles.router(&flags);
    let decode = roles.worker("decode", &router, &["--pages", "1024"]);
    let client = Client::connect(router.address()).await;
    client.until_ready(1).await;
    let mut http = TcpStream::connect(router.http()).expect("HTTP is served");
    http.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let prompt = tiny_prompt(2, 30);
    let body = format!(
        "{{\"prompt\": {prompt:?}, \"max_tokens\": 3900, \"ignore_eos\": true, \"stream\": true}}"
    );
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    http.write_all(request.as_bytes()).expect("it is open");
    let mut http = BufReader::new(http);
    let mut said = String::new();
    while !said.contains("data: ") {
        http.read_line(&mut said).expect("a stream begins");
    }
    let mut events = client.open(endless(tiny_prompt(1, 100), 3900)).await;
    let mut answer = Answer::default();
    answer.take(events.message().await.expect("running").expect("more"));
    router.signal("TERM");
    let status = rest(events, answer);
    let status = tokio::time::timeout(PATIENCE, status)
        .await
        .expect("an end");
    let status = status.expect_err("cut off, and no success");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("shutting down"), "{status:?}");
    // All of it, to its proper end.
    http.read_to_string(&mut said).expect("no torn answer");
    let last = said.rsplit("data: ").next().expect("events");
    assert!(last.starts_with("{\"error\":"), "{last}");
    assert!(last.contains("shutting down"), "{last}");
    assert!(last.ends_with("\r\n0\r\n\r\n"), "{last}");
    assert!(router.wait().success(), "{}", router.log());
    let decode = WorkerClient::connect(decode.address()).await;
    decode.when("idle", is_idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_02_a_router_that_ends_serves_those_who_have_not_noticed_yet() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&tiny_model(folder.path()));
    // Longer than the test: its end is the second signal.
    let flags = ["--drain-notice-ms", "600000"];
    let mut router = roles.router(&[&flags[..], &["--http-listen", "127.0.0.1:0"]].concat());
    let decode = roles.worker("decode", &router, &[]);
    let old = Client::connect(router.address()).await;
    old.until_ready(1).await;
    let kept = TcpStream::connect(router.http()).expect("HTTP is served");
    kept.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut kept = BufReader::new(kept);
    let ok = "HTTP/1.1 200 OK\r\n";
    assert_eq!(complete(&mut kept, 9), ok);
    let health = Health::connect(router.address()).await;
    assert!(health.is_serving("ready").await);
    let probe = |path: &str| curl(&[&format!("http://{}{path}", router.http())]).0;
    assert_eq!((probe("/health"), probe("/health/live")), (200, 200));
    router.signal("TERM");
    let noticed = async {
        while health.is_serving("ready").await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, noticed)
        .await
        .expect("not ready at once");
    assert!(health.is_serving("live").await);
    assert_eq!((probe("/health"), probe("/health/live")), (503, 200));
    for seed in 0..5 {
        let new = Client::connect(router.address()).await;
        for client in [&old, &new] {
            let answer = client.generate(endless(tiny_prompt(seed, 30), 4)).await;
            assert_eq!(answer.expect("served").ids().len(), 4);
        }
        assert_eq!(complete(&mut kept, seed), ok);
    }
    router.signal("TERM");
    assert_eq!(router.wait().code(), Some(1), "{}", router.log());
    drop(decode);
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_05_probes_are_answered_while_all_cpus_compute() {
    /// Ten times what an operator would call slow.
    const LIMIT: Duration = Duration::from_secs(1);
    let folder = tempfile::tempdir().expect("a folder");
    let all = std::thread::available_parallelism().map_or(2, usize::from);
    let service = Setup::new(&slow_model(folder.path()))
        .flag("--pages", 2048)
        .flag("--prefill-threads", all)
        .flag("--decode-threads", all)
        .start()
        .await;
    let mut probed = vec![Health::connect(&service.address).await];
    for address in service.addresses().await.values() {
        probed.push(Health::connect(address).await);
    }
    let mut running = Vec::new();
    for seed in 0..16 {
        running.push(service.open(endless(tiny_prompt(seed, 1500), 4)).await);
    }
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        for health in &probed {
            for name in ["live", "ready"] {
                let begin = std::time::Instant::now();
                let answer = tokio::time::timeout(LIMIT, health.is_serving(name)).await;
                assert!(answer.expect("in time"), "{name}");
                longest = longest.max(begin.elapsed());
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("the longest probe took {longest:?}");
    for events in running {
        let answer = rest(events, Answer::default()).await;
        assert_eq!(answer.expect("an answer").ids().len(), 4);
    }
    service.assert_idle().await;
}
