//! Limits at the HTTP door: bodies, heads, connections, time, clients.

use std::fmt::Write as _;
use std::time::Duration;

use baton_router::RouterConfig;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::fake::{Setup, endless};
use crate::harness::{Harness, config, soon};
use crate::web::{CHAT, JSON, TEXT, Web};

async fn still_serves(harness: &Harness) {
    let answer = Web::json(harness, TEXT, &json!({"prompt": "x", "max_tokens": 2})).await;
    answer.expect(200).await;
}

#[tokio::test]
async fn sec_01_compressed_and_foreign_bodies_are_not_read() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    for encoding in ["gzip", "br", "zstd", "gzip, gzip"] {
        let head = format!("{JSON}Content-Encoding: {encoding}\r\n");
        let error = Web::post(&harness.http, CHAT, &head, &[0x1f; 1000]).await;
        let error = error.error(415).await;
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("Content-Encoding")
        );
    }
    // In a second line too, and as a transfer's encoding.
    let hidden = format!("{JSON}Content-Encoding: identity\r\nContent-Encoding: gzip\r\n");
    let error = Web::post(&harness.http, CHAT, &hidden, &[0x1f; 1000]).await;
    error.error(415).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nConnection: close\r\n{JSON}\r\n"
    );
    assert_eq!(Web::raw(&harness.http, head.as_bytes()).await.status, 400);
    for head in ["", "Content-Type: application/x-www-form-urlencoded\r\n"] {
        Web::post(&harness.http, CHAT, head, b"{}")
            .await
            .error(415)
            .await;
    }
    let plain = "Content-Type: Application/JSON; charset=utf-8\r\nContent-Encoding: identity\r\n";
    let body = json!({"prompt": "x", "max_tokens": 2}).to_string();
    assert_eq!(
        Web::post(&harness.http, TEXT, plain, body.as_bytes())
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn sec_05_bodies_and_heads_have_limits() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    // Declared too large: refused before it is read.
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 5242880\r\n{JSON}\r\n");
    let error = Web::raw(&harness.http, head.as_bytes()).await;
    assert_eq!(error.status, 413);
    // Not declared: refused at the limit.
    let mut chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n{JSON}\r\n"
    );
    let _ = write!(chunked, "{:x}\r\n", (4 << 20) + 1);
    let chunked = [chunked.as_bytes(), &vec![b' '; (4 << 20) + 1]].concat();
    let error = Web::raw(&harness.http, &chunked).await;
    assert_eq!(error.status, 413);
    // Nothing grows with what is asked for.
    let deep = format!(
        "{{\"tools\":{}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let many = format!("{{\"prompt\":[{}\"x\"]}}", "\"x\",".repeat(100_000));
    let stops = format!("{{\"stop\":[{}\"x\"]}}", "\"x\",".repeat(100_000));
    let messages = format!(
        "{{\"messages\":[{}{{}}]}}",
        "{\"role\":\"user\",\"content\":\"x\"},".repeat(100_000)
    );
    for (path, body, param) in [
        (CHAT, deep, "tools"),
        (TEXT, many, "prompt"),
        (TEXT, stops, "stop"),
        (CHAT, messages, "messages"),
        (TEXT, "{\"prompt\":\"x\",\"n\":1000000000}".to_owned(), "n"),
        (
            TEXT,
            "{\"prompt\":\"x\",\"best_of\":1000000}".to_owned(),
            "best_of",
        ),
        (
            TEXT,
            "{\"prompt\":\"x\",\"max_tokens\":2147483648}".to_owned(),
            "max_tokens",
        ),
    ] {
        let error = Web::post(&harness.http, path, JSON, body.as_bytes()).await;
        let error = error.error(400).await;
        assert_eq!(error["param"], param, "{error}");
    }
    for body in [
        "",
        "[]",
        "{",
        "{} {}",
        "null",
        "\"x\"",
        "{\"prompt\":\"\\ud800\"}",
        "\u{0}",
    ] {
        let error = Web::post(&harness.http, TEXT, JSON, body.as_bytes()).await;
        assert_eq!(
            error.error(400).await["type"],
            "invalid_request_error",
            "{body}"
        );
    }
    let lines = "X-A: b\r\n".repeat(100);
    let head = format!("GET /health HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
    assert_eq!(Web::raw(&harness.http, head.as_bytes()).await.status, 431);
    let error = Web::get(&harness, "/v2/nothing").await.error(404).await;
    assert!(error["message"].as_str().unwrap().contains("/v2/nothing"));
    Web::get(&harness, CHAT).await.error(405).await;
    still_serves(&harness).await;
}

#[tokio::test]
async fn sec_05_silent_connections_shut_nobody_out() {
    let config = RouterConfig {
        max_connections: 8,
        ..config()
    };
    let harness = Harness::start(config).await;
    let _decode = harness.add(Setup::decode("decode-0", endless())).await;
    let mut silent = Vec::new();
    for _ in 0..30 {
        let mut connection = TcpStream::connect(&harness.http).await.unwrap();
        connection.write_all(b"POST /v1/chat").await.unwrap();
        silent.push(connection);
    }
    for _ in 0..10 {
        still_serves(&harness).await;
    }
    drop(silent);
}

#[tokio::test]
async fn sec_05_a_client_has_only_so_many_requests() {
    let config = RouterConfig {
        max_per_client: 2,
        ..config()
    };
    let harness = Harness::start(config).await;
    let stuck = Setup::decode("decode-0", endless())
        .plays_decode(|_leg| async move { std::future::pending().await });
    let decode = harness.add(stuck).await;
    let body = json!({"prompt": "x", "max_tokens": 2});
    let first = Web::json(&harness, TEXT, &body);
    let second = Web::json(&harness, TEXT, &body);
    let third = async {
        decode.until_started(2).await;
        let refused = Web::json(&harness, TEXT, &body).await;
        assert_eq!(refused.headers["retry-after"], "1");
        refused.error(429).await
    };
    let error = tokio::select! {
        _ = async { tokio::join!(first, second) } => panic!("nobody answers here"),
        error = third => error,
    };
    assert_eq!(error["type"], "rate_limit_error");
    harness.until_idle().await;
    // A list counts as often as it has prompts.
    let many = json!({"prompt": ["a", "b", "c"], "max_tokens": 2});
    Web::json(&harness, TEXT, &many).await.error(429).await;
    harness.until_idle().await;
    soon(
        "both are counted",
        harness.until_counter("requests_refused", 2),
    )
    .await;
}

#[tokio::test]
async fn a_deadline_is_the_clients_to_set() {
    let harness = Harness::start(config()).await;
    let stuck = Setup::decode("decode-0", endless())
        .plays_decode(|_leg| async move { std::future::pending().await });
    let _decode = harness.add(stuck).await;
    let body = json!({"prompt": "x", "max_tokens": 2}).to_string();
    let ask = async |ms: &str| {
        let head = format!("{JSON}X-Baton-Timeout-Ms: {ms}\r\n");
        Web::post(&harness.http, TEXT, &head, body.as_bytes()).await
    };
    let error = soon("the deadline", ask("300")).await.error(504).await;
    assert_eq!(error["type"], "server_error");
    for wrong in ["0", "-1", "x", "99999999999", ""] {
        let error = ask(wrong).await.error(400).await;
        assert_eq!(error["param"], "x-baton-timeout-ms");
    }
    harness.until_idle().await;
    tokio::time::timeout(
        Duration::from_secs(5),
        harness.until_counter("requests_deadline", 1),
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn sec_05_large_bodies_have_room_together_and_small_ones_are_read_anyway() {
    let config = RouterConfig {
        max_body_bytes: 4 << 20,
        ..config()
    };
    let harness = Harness::start(config).await;
    let _decode = harness.add(Setup::decode("decode-0", endless())).await;
    let head = format!("POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n{JSON}\r\n");
    let part = [head.as_bytes(), &vec![b' '; 2_000_000]].concat();
    // Three that stand still before their end, where there is room for two.
    let stuck = (0..3).map(|_| Box::pin(Web::raw(&harness.http, &part)));
    let (refused, _, others) = futures::future::select_all(stuck).await;
    assert_eq!(refused.headers["retry-after"], "1");
    let error = refused.error(503).await;
    assert_eq!(error["code"], "overloaded");
    assert!(
        error["message"].as_str().unwrap().contains("4194304"),
        "{error}"
    );
    still_serves(&harness).await;
    // Who leaves gives the room back.
    drop(others);
    let body = json!({"prompt": "x", "max_tokens": 2});
    let body = format!("{}{body}", " ".repeat(3_900_000));
    soon("there is room again", async {
        while Web::post(&harness.http, TEXT, JSON, body.as_bytes())
            .await
            .status
            != 200
        {}
    })
    .await;
    harness.until_idle().await;
}
