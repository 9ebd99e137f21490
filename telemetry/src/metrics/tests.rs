//! The text, the labels and the list of all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::names::{self, ALL};
use super::{Kind, Metrics, Row, Shown, serve};

/// Values of a series by its name and labels as they stand in the text.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| {
        line.strip_prefix(series)
            .is_some_and(|rest| rest.starts_with(' '))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn figures_are_read_when_somebody_asks() {
    let metrics = Metrics::new();
    let total = Arc::new(std::sync::atomic::AtomicU64::new(3));
    let source = Arc::clone(&total);
    metrics.read_from(move |scrape| {
        let total = source.load(std::sync::atomic::Ordering::Relaxed);
        scrape.count(&names::RETRIES, [], total);
        scrape.gauge(&names::WORKERS, ["decode", "ready"], 2.0);
    });
    assert_eq!(value(&metrics.render(), "baton_retries_total"), Some(3.0));
    total.store(5, std::sync::atomic::Ordering::Relaxed);
    let text = metrics.render();
    assert_eq!(value(&text, "baton_retries_total"), Some(5.0));
    let series = "baton_workers{role=\"decode\",state=\"ready\"}";
    assert_eq!(value(&text, series), Some(2.0));
    assert!(
        text.contains("# TYPE baton_retries_total counter\n"),
        "{text}"
    );
    assert!(
        text.contains("# HELP baton_retries_total Attempts"),
        "{text}"
    );
    assert!(value(&text, "process_resident_memory_bytes") > Some(1e6));
    assert!(value(&text, "process_start_time_seconds") > Some(1e9));
}

#[test]
fn distributions_have_fine_bounds_and_exact_sums() {
    let metrics = Metrics::new();
    let itl = metrics.timing(&names::ITL);
    assert!(metrics.render().contains("baton_itl_seconds_count 0\n"));
    for micros in [250, 1_750, 9_000, 90_000_000] {
        itl.record(Duration::from_micros(micros));
    }
    let text = metrics.render();
    let below = |bound: &str| {
        value(
            &text,
            &format!("baton_itl_seconds_bucket{{le=\"{bound}\"}}"),
        )
    };
    assert_eq!(below("0.0002"), Some(0.0));
    assert_eq!(below("0.0003"), Some(1.0));
    assert_eq!(below("0.0015"), Some(1.0));
    assert_eq!(below("0.002"), Some(2.0));
    assert_eq!(below("0.01"), Some(3.0));
    assert_eq!(below("60"), Some(3.0));
    assert_eq!(below("120"), Some(4.0));
    assert_eq!(below("+Inf"), Some(4.0));
    let sum = value(&text, "baton_itl_seconds_sum").unwrap();
    assert!((sum - 90.011).abs() < 1e-9, "{sum}");
}

#[test]
fn obs_03_values_that_are_not_known_are_other_and_none_is_long() {
    let metrics = Metrics::new();
    metrics.read_from(|scrape| {
        scrape.count(&names::HTTP_REQUESTS, ["/wp-login.php", "4xx"], 1);
        scrape.count(&names::LEGS_ENDED, ["Not a reason"], 1);
        scrape.gauge(&names::VLLM_RUNNING, [&"m".repeat(500)], 1.0);
    });
    let text = metrics.render();
    let folded = [
        "baton_http_requests_total{route=\"other\",status=\"4xx\"}",
        "baton_legs_ended_total{reason=\"other\"}",
    ];
    for series in folded {
        assert_eq!(value(&text, series), Some(1.0), "{text}");
    }
    let longest = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(str::len)
        .max();
    assert!(longest < Some(160), "{text}");
}

#[test]
fn names_are_those_that_prometheus_expects() {
    let names: BTreeSet<&str> = ALL.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), ALL.len(), "a name twice");
    for row in ALL {
        let ours = row.name.starts_with("baton_") || row.name.starts_with("process_");
        assert!(ours || row.name.starts_with("vllm:"), "{}", row.name);
        let total = row.name.ends_with("_total");
        assert_eq!(total, row.kind == Kind::Counter, "{}", row.name);
        let seconds = row.name.ends_with("_seconds");
        assert!(seconds || row.kind != Kind::Timing, "{}", row.name);
        assert!(
            row.help.ends_with('.') && row.help.len() < 160,
            "{}",
            row.name
        );
    }
}

/// The tables of `docs/metrics.md`.
fn table(shown: Shown) -> String {
    let mut lines = vec!["| name | kind | labels | what it says |".to_owned()];
    lines.push("|---|---|---|---|".to_owned());
    lines.extend(ALL.iter().filter(|row| row.shown == shown).map(line));
    lines.join("\n") + "\n"
}

fn line(row: &Row) -> String {
    let kind = match row.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Timing | Kind::Size => "histogram",
    };
    let labels: Vec<String> = (row.labels.iter())
        .map(|label| format!("`{}`", label.name))
        .collect();
    let labels = labels.join(", ");
    format!("| `{}` | {kind} | {labels} | {} |", row.name, row.help)
}

#[test]
fn the_documentation_lists_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let page = std::fs::read_to_string(path).expect("docs/metrics.md");
    for shown in [
        Shown::Everywhere,
        Shown::Router,
        Shown::Worker,
        Shown::Gateway,
    ] {
        let table = table(shown);
        assert!(
            page.contains(&table),
            "docs/metrics.md lacks this table:\n{table}"
        );
    }
    let listed = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(listed, ALL.len(), "docs/metrics.md lists what is not there");
}

async fn ask(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(Duration::from_secs(20), read)
        .await
        .expect("an answer in time")
        .expect("text");
    answer
}

#[tokio::test]
async fn the_port_answers_one_path() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let metrics = Metrics::new();
    metrics.set_role("prefill");
    let server = tokio::spawn(serve(listener, metrics));
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let answer = ask(address, &get("/metrics")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains("content-type: text/plain; version=0.0.4"),
        "{answer}"
    );
    assert!(answer.contains("role=\"prefill\"} 1"), "{answer}");
    assert!(
        ask(address, &get("/other"))
            .await
            .starts_with("HTTP/1.1 404")
    );
    let post =
        "POST /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    assert!(ask(address, post).await.starts_with("HTTP/1.1 405"));
    let long = get(&format!("/{}", "x".repeat(64 << 10)));
    assert!(!ask(address, &long).await.starts_with("HTTP/1.1 200"));
    server.abort();
}

#[tokio::test]
async fn connections_that_say_nothing_shut_nobody_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let server = tokio::spawn(serve(listener, Metrics::new()));
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).await.expect("connects"));
    }
    let get = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert!(ask(address, get).await.starts_with("HTTP/1.1 200"));
    server.abort();
}
