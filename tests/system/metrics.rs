//! Metrics of the running service: what they say is what has happened, on every process, and Prometheus
//! understands it.

#![expect(
    clippy::float_cmp,
    reason = "counts are whole numbers, which floats hold exactly"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::models::{endless, slow_model, tiny_model, tiny_prompt};
use crate::process::{PATIENCE, Process};
use crate::scrape::{Scrape, complaints, get, until};
use crate::service::{Roles, Service, Setup};

/// Addresses of the metrics of router, prefill and decode workers, in this order.
fn ports(process: &Process) -> Vec<String> {
    process.metrics().split(',').map(str::to_owned).collect()
}

async fn start(folder: &std::path::Path) -> Service {
    Setup::new(&tiny_model(folder))
        .flag("--local-prefill-tokens", 0)
        .start()
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_every_process_say_what_has_happened() {
    const REQUESTS: u32 = 6;
    const TOKENS: u32 = 20;
    const PROMPT: u32 = 90;
    let folder = tempfile::tempdir().expect("a folder");
    let service = start(folder.path()).await;
    let ports = ports(&service.process);
    assert_eq!(ports.len(), 3, "{ports:?}");

    let requests = (0..REQUESTS).map(|seed| {
        let prompt = tiny_prompt(u64::from(seed), PROMPT as usize);
        service.generate(endless(prompt, TOKENS))
    });
    let answers = futures::future::join_all(requests);
    let scraping = tokio::task::spawn_blocking({
        let ports = ports.clone();
        move || {
            let scrapes = ports.iter().map(|port| Scrape::of(port));
            for scrape in scrapes.collect::<Vec<_>>() {
                assert_eq!(complaints(&scrape.text), [""; 0], "{}", scrape.text);
            }
        }
    });
    let (answers, scraped) = tokio::join!(answers, scraping);
    scraped.expect("scrapes under load are whole");
    let receipts = answers.into_iter().map(|answer| {
        let answer = answer.expect("an answer");
        answer.receipt.expect("a receipt")
    });
    let receipts: Vec<_> = receipts.collect();
    service.assert_idle().await;

    let requests = f64::from(REQUESTS);
    let router = until(&ports[0], "idle", |scrape| {
        scrape.value("baton_requests_running") == 0.0
    });
    assert_eq!(
        router.sum("baton_requests_total", &["outcome=\"ok\"", "api=\"grpc\""]),
        requests
    );
    assert_eq!(
        router.sum("baton_requests_total", &["model=\"other\""]),
        0.0
    );
    assert_eq!(router.sum("baton_requests_total", &[]), requests);
    assert_eq!(
        router.value("baton_prompt_tokens_total"),
        requests * f64::from(PROMPT)
    );
    assert_eq!(
        router.value("baton_completion_tokens_total"),
        requests * f64::from(TOKENS)
    );
    assert_eq!(
        router.value("baton_itl_seconds_count"),
        requests * f64::from(TOKENS - 1)
    );
    assert_eq!(
        router.sum("baton_attempts_total", &["placement=\"split\""]),
        requests
    );
    let of_receipts = [
        ("ttft", receipts.iter().map(|one| one.ttft_us).sum::<u64>()),
        (
            "request",
            receipts.iter().map(|one| one.end_to_end_us).sum(),
        ),
        ("queue", receipts.iter().map(|one| one.queue_us).sum()),
        ("prefill", receipts.iter().map(|one| one.prefill_us).sum()),
        (
            "grant_wait",
            receipts.iter().map(|one| one.grant_wait_us).sum(),
        ),
        ("transfer", receipts.iter().map(|one| one.transfer_us).sum()),
        ("landing", receipts.iter().map(|one| one.landing_us).sum()),
    ];
    for (name, micros) in of_receipts {
        assert_eq!(
            router.value(&format!("baton_{name}_seconds_count")),
            requests,
            "{name}"
        );
        // Receipts are in whole microseconds.
        let difference = router.value(&format!("baton_{name}_seconds_sum")) - micros as f64 / 1e6;
        assert!(difference.abs() < requests * 1.1e-6, "{name}: {difference}");
    }
    for role in ["prefill", "decode"] {
        let ready = format!("baton_workers{{role=\"{role}\",state=\"ready\"}}");
        assert_eq!(router.value(&ready), 1.0);
    }

    let prefill = Scrape::of(&ports[1]);
    let decode = Scrape::of(&ports[2]);
    let bytes: u64 = receipts.iter().map(|one| one.transfer_bytes).sum();
    assert_eq!(
        prefill.sum("baton_transfer_bytes_total", &["sent"]),
        bytes as f64
    );
    assert_eq!(
        decode.sum("baton_transfer_bytes_total", &["received"]),
        bytes as f64
    );
    for (worker, role) in [(&prefill, "prefill"), (&decode, "decode")] {
        worker.assert_conserved();
        assert_eq!(
            worker.sum("baton_transfers_total", &["committed"]),
            requests
        );
        assert_eq!(worker.sum("baton_transfers_total", &[]), requests);
        assert_eq!(
            worker.value("baton_legs_ended_total{reason=\"done\"}"),
            requests
        );
        assert_eq!(
            worker.sum("baton_worker_info", &[&format!("role=\"{role}\"")]),
            1.0
        );
        assert_eq!(worker.sum("baton_pages", &["live"]), 0.0);
        assert!(worker.value("baton_step_seconds_count") > 0.0);
        assert!(worker.value("baton_step_tokens_sum") >= worker.value("baton_step_sequences_sum"));
        assert!(worker.sum("vllm:kv_cache_usage_perc", &["model_name=\""]) < 0.001);
        assert_eq!(
            worker.sum("vllm:cache_config_info", &["block_size=\"16\""]),
            1.0
        );
    }
    assert_eq!(
        prefill.value("baton_step_tokens_sum"),
        requests * f64::from(PROMPT)
    );
    assert_eq!(
        decode.value("baton_step_tokens_sum"),
        requests * f64::from(TOKENS - 1)
    );
    assert_eq!(
        decode.value("baton_tokens_sampled_total"),
        requests * f64::from(TOKENS - 1)
    );
    for scrape in [&router, &prefill, &decode] {
        assert_eq!(complaints(&scrape.text), [""; 0], "{}", scrape.text);
    }

    let (status, text) = get(service.process.http(), "/metrics", "");
    assert_eq!(status, 200);
    let over_http = Scrape::read(text);
    let names: BTreeSet<&str> = over_http.names().collect();
    assert_eq!(
        names,
        router.names().collect(),
        "the router's two ports differ"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_ports_are_taken_as_asked_or_the_start_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&tiny_model(folder.path()));
    let without = roles.router(&[]);
    let (status, _) = get_of(&roles, &without);
    assert_eq!(
        status, 404,
        "a router without the flag shows metrics at its HTTP port alone"
    );
    let shown = roles.router(&["--metrics-listen", "127.0.0.1:0"]);
    let taken = shown.metrics().to_owned();
    assert!(Scrape::of(&taken).text.contains("baton_build_info"));
    let model = folder.path().join("tiny.gguf").display().to_string();
    let refused = [
        "router",
        "--model",
        &model,
        "--listen",
        "127.0.0.1:0",
        "--metrics-listen",
    ];
    let words = [&refused[..], &[&taken]].concat();
    crate::process::assert_refused(&words, 1, &["--metrics-listen", &taken]);
    let words = [&refused[..], &["9464"]].concat();
    crate::process::assert_refused(&words, 2, &["--metrics-listen", "9464", "IP:PORT"]);
    // Beyond this machine without TLS: there is nothing to hide.
    let everywhere = roles.router(&["--metrics-listen", "0.0.0.0:0"]);
    let port = everywhere
        .metrics()
        .rsplit(':')
        .next()
        .expect("a port")
        .to_owned();
    assert!(
        Scrape::of(&format!("127.0.0.1:{port}"))
            .text
            .contains("baton_build_info")
    );
}

/// What a path that is nowhere gives at a port of HTTP.
fn get_of(roles: &Roles, without: &Process) -> (u16, String) {
    assert!(!without.says("metrics="));
    let with_http = roles.router(&["--http-listen", "127.0.0.1:0"]);
    assert_eq!(get(with_http.http(), "/metrics", "").0, 200);
    get(with_http.http(), "/nowhere", "")
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_at_the_clients_port_need_an_admin_key_where_keys_are_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut list = String::new();
    let mut keys = Vec::new();
    for name in [&["user"][..], &["operator", "--admin"]] {
        let made = crate::process::baton(&[&["keys", "new"], name].concat());
        list.push_str(&made.stderr[made.stderr.find("[[key]]").expect("an entry")..]);
        keys.push(made.stdout.trim().to_owned());
    }
    let file = folder.path().join("keys.toml");
    std::fs::write(&file, list).expect("writable");
    let roles = Roles::new(&tiny_model(folder.path()));
    let file = file.display().to_string();
    let flags = ["--http-listen", "127.0.0.1:0", "--api-keys", &file];
    let router = roles.router(&[&flags[..], &["--metrics-listen", "127.0.0.1:0"]].concat());
    let with = |key: &str| {
        get(
            router.http(),
            "/metrics",
            &format!("Authorization: Bearer {key}\r\n"),
        )
    };
    assert_eq!(get(router.http(), "/metrics", "").0, 401);
    assert_eq!(with(&keys[0]).0, 403);
    assert_eq!(with(&keys[1]).0, 200);
    let scrape = Scrape::of(router.metrics());
    assert_eq!(scrape.value("baton_callers_refused_total"), 2.0);
    for key in &keys {
        assert!(!scrape.text.contains(key), "a key is shown");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn str_01_a_hundred_callers_that_leave_are_counted_as_cancelled() {
    const EACH: usize = 50;
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&slow_model(folder.path())).start().await;
    let ports = ports(&service.process);
    for round in 0..EACH {
        let prompt = tiny_prompt(round as u64, 20);
        let mut events = service.open(endless(prompt.clone(), 4000)).await;
        for _ in 0..3 {
            let event = events.message().await.expect("running");
            assert!(event.is_some(), "it did not last");
        }
        drop(events);
        leave_http(service.process.http(), &prompt, round % 2 == 0).await;
    }
    let router = until(&ports[0], "idle", |scrape| {
        scrape.value("baton_requests_running") == 0.0
            && scrape.sum("baton_requests_total", &[]) == 2.0 * EACH as f64
    });
    for api in ["api=\"grpc\"", "api=\"http\""] {
        let cancelled = router.sum("baton_requests_total", &[api, "outcome=\"cancelled\""]);
        assert_eq!(cancelled, EACH as f64, "{}", router.text);
    }
    for worker in &ports[1..] {
        let idle = until(worker, "idle", |scrape| {
            scrape.value("baton_sequences_running") == 0.0
                && scrape.sum("baton_pages", &["granted"]) == 0.0
                && scrape.sum("baton_pages", &["live"]) == 0.0
        });
        idle.assert_conserved();
        let sampled = idle.value("baton_tokens_sampled_total");
        assert_eq!(
            Scrape::of(worker).value("baton_tokens_sampled_total"),
            sampled
        );
    }
    service.assert_idle().await;
}

/// A caller over HTTP that resets its connection: after three pieces of a stream, or while it waits.
async fn leave_http(address: &str, prompt: &[u32], stream: bool) {
    let body = json!({
        "prompt": prompt, "max_tokens": 4000, "ignore_eos": true, "stream": stream,
    });
    let body = body.to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(address).await.expect("it listens");
    connection
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    if stream {
        let mut seen = Vec::new();
        while String::from_utf8_lossy(&seen).matches("data: ").count() < 3 {
            let read = tokio::time::timeout(PATIENCE, connection.read_buf(&mut seen)).await;
            assert!(read.expect("in time").expect("open") > 0, "it did not last");
        }
    } else {
        // Well after it has begun, well before it could end.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    connection
        .set_zero_linger()
        .expect("a reset instead of a goodbye");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_and_wrong_models_are_counted_where_they_belong() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = start(folder.path()).await;
    let port = ports(&service.process).swap_remove(0);
    let before = Scrape::of(&port).names().count();
    let mut unknown = endless(tiny_prompt(1, 10), 2);
    unknown.model = "no such model".into();
    let error = service.generate(unknown).await.expect_err("refused");
    assert_eq!(error.code(), tonic::Code::NotFound);
    let too_long = endless(tiny_prompt(1, 100_000), 2);
    let error = service.generate(too_long).await.expect_err("refused");
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    let scrape = Scrape::of(&port);
    let ended = |labels: &[&str]| scrape.sum("baton_requests_total", labels);
    assert_eq!(ended(&["outcome=\"invalid\""]), 2.0);
    assert_eq!(ended(&["code=\"not_found\"", "model=\"other\""]), 1.0);
    assert_eq!(
        ended(&["code=\"invalid_argument\"", "model=\"tiny"]),
        1.0,
        "{}",
        scrape.text
    );
    assert_eq!(scrape.names().count(), before);
}
