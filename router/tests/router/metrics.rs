//! Metrics, whatever clients send.

#![expect(
    clippy::float_cmp,
    reason = "counts are whole numbers, which floats hold exactly"
)]

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::fake::endless;
use crate::harness::{Harness, soon};
use crate::web::Web;

const REQUESTS: usize = 10_000;
const CONNECTIONS: usize = 8;

/// Series and their values.
async fn scrape(harness: &Harness) -> BTreeMap<String, f64> {
    let text = Web::get(harness, "/metrics").await.expect(200).await;
    let series = text.lines().filter(|line| !line.starts_with('#'));
    series
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a series and its value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

fn word(random: &mut StdRng) -> String {
    let length = random.random_range(1..200);
    (0..length)
        .map(|_| char::from(random.random_range(b'a'..=b'z')))
        .collect()
}

/// A request of which nothing is as it should be.
fn strange(random: &mut StdRng) -> String {
    let (model, path) = (word(random), word(random));
    let body = json!({"model": model, "prompt": "x", "user": word(random), "max_tokens": 1});
    let body = body.to_string();
    let path = match random.random_range(0..4) {
        0 => "/v1/completions".to_owned(),
        1 => format!("/{path}"),
        2 => format!("/v1/{path}/{model}"),
        _ => format!("/v1/models/{path}"),
    };
    let head = ["x-tenant", "x-user", "x-request-id", &word(random)]
        .map(|name| format!("{name}: {}\r\n", word(random)))
        .concat();
    let kind = "content-type: application/json";
    let length = body.len();
    match random.random_range(0..3) {
        0 => format!("GET {path} HTTP/1.1\r\nhost: x\r\n{head}\r\n"),
        _ => format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\n{kind}\r\n{head}content-length: {length}\r\n\r\n{body}"
        ),
    }
}

/// Says it all on one connection after another's answer; a connection that is closed is opened again.
async fn send(address: String, requests: Vec<String>) {
    let mut open: Option<BufReader<TcpStream>> = None;
    for request in requests {
        let mut stream = match open.take() {
            Some(stream) => stream,
            None => BufReader::new(TcpStream::connect(&address).await.unwrap()),
        };
        stream.write_all(request.as_bytes()).await.unwrap();
        let (mut length, mut closes) = (0, false);
        let mut line = String::new();
        while stream.read_line(&mut line).await.unwrap() > 2 {
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            closes |= lower.trim() == "connection: close";
            line.clear();
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        open = (!closes).then_some(stream);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_03_ten_thousand_strange_names_make_no_series() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let before = scrape(&harness).await;
    let sending = (0..CONNECTIONS).map(|_| {
        let requests = (0..REQUESTS / CONNECTIONS).map(|_| strange(&mut random));
        tokio::spawn(send(harness.http.clone(), requests.collect()))
    });
    for sent in futures::future::join_all(sending).await {
        sent.unwrap();
    }
    let asked_for_generation = harness.counter("requests_received").await as f64;
    harness.until_idle().await;
    let after = soon("all are counted", async {
        loop {
            let after = scrape(&harness).await;
            let calls = |series: &&String| series.starts_with("baton_http_requests_total");
            let calls: f64 = after.keys().filter(calls).map(|series| after[series]).sum();
            // The first scrape is one of them.
            if calls >= (REQUESTS + 1) as f64 {
                return after;
            }
        }
    })
    .await;
    let names = |scrape: &BTreeMap<String, f64>| scrape.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    assert!(after.keys().all(|series| series.len() < 160));
    let grown = |series: &str| after[series] - before[series];
    let strangers =
        "baton_requests_total{api=\"http\",model=\"other\",outcome=\"invalid\",code=\"not_found\"}";
    assert!(asked_for_generation > 100.0);
    assert_eq!(grown(strangers), asked_for_generation);
    assert!(grown("baton_http_requests_total{route=\"other\",status=\"4xx\"}") > 4000.0);
    assert!(grown("baton_http_requests_total{route=\"/v1/models/\",status=\"4xx\"}") > 1000.0);
}
