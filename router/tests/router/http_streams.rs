//! Answers over HTTP piece by piece: what comes when, how it ends, and that leaving cancels.

use std::time::Duration;

use baton_proto::legs::{DecodeEvent, Scheduled};
use baton_router::RouterConfig;
use serde_json::{Value, json};
use tonic::Status;

use crate::fake::{Setup, begun, endless, says, token};
use crate::harness::{Harness, config, ids, soon};
use crate::web::{CHAT, TEXT, Web};

/// A chat that is long enough to be split.
fn chat(more: &Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "x y z ".repeat(60)}], "stream": true});
    let fields = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn contents(events: &[Value]) -> String {
    let content = |event: &Value| {
        let delta = &event["choices"][0]["delta"]["content"];
        delta.as_str().unwrap_or_default().to_owned()
    };
    events.iter().map(content).collect()
}

#[tokio::test]
async fn tok_01_characters_come_whole_and_the_role_with_the_first() {
    let text = "ok 🙂 日本";
    let (harness, _prefill, _decode) = Harness::pair(says(&ids(text))).await;
    let answer = Web::json(&harness, CHAT, &chat(&json!({}))).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let (events, done) = answer.events().await;
    assert!(done);
    assert_eq!(contents(&events), text);
    let first = &events[0]["choices"][0]["delta"];
    assert_eq!(first["role"], "assistant");
    assert!(!first["content"].as_str().unwrap().is_empty(), "{first}");
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert!(!event.to_string().contains('\u{FFFD}'));
        assert!(event.get("usage").is_none());
    }
    for event in &events[1..] {
        assert!(
            event["choices"][0]["delta"].get("role").is_none(),
            "{event}"
        );
    }
    let last = &events[events.len() - 1]["choices"][0];
    assert_eq!(
        (&last["finish_reason"], &last["delta"]),
        (&json!("stop"), &json!({}))
    );
    let mut whole = chat(&json!({}));
    whole["stream"] = json!(false);
    let whole = Web::json(&harness, CHAT, &whole).await.value().await;
    assert_eq!(whole["choices"][0]["message"]["content"], text);
}

#[tokio::test]
async fn tok_02_a_cut_in_a_character_is_a_normal_end() {
    let all = ids("ok 🙂");
    let (harness, _prefill, _decode) = Harness::pair(says(&all)).await;
    let cut = json!({"max_tokens": all.len() - 1});
    let (events, done) = Web::json(&harness, CHAT, &chat(&cut)).await.events().await;
    assert!(done);
    let last = &events[events.len() - 1]["choices"][0];
    assert_eq!(last["finish_reason"], "length");
    let mut whole = chat(&cut);
    whole["stream"] = json!(false);
    let whole = Web::json(&harness, CHAT, &whole).await.value().await;
    assert_eq!(whole["choices"][0]["message"]["content"], contents(&events));
    assert_eq!(whole["usage"]["completion_tokens"], all.len() - 1);
}

#[tokio::test]
async fn smp_15_stop_strings_end_the_text_in_both_modes() {
    let (harness, _prefill, _decode) = Harness::pair(says(&ids("The quick brown fox"))).await;
    for (stop, expected) in [
        (json!(["own fox"]), "The quick br"),
        (json!("ck br"), "The qui"),
        (json!(["The"]), ""),
        (json!(["zzz"]), "The quick brown fox"),
    ] {
        let body = chat(&json!({"stop": stop}));
        let (events, done) = Web::json(&harness, CHAT, &body).await.events().await;
        assert!(done);
        assert_eq!(contents(&events), expected, "{stop}");
        let mut whole = body;
        whole["stream"] = json!(false);
        let whole = Web::json(&harness, CHAT, &whole).await.value().await;
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"], expected);
        assert_eq!(choice["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn str_06_usage_comes_when_asked_for_and_once() {
    let (harness, _prefill, _decode) = Harness::pair(says(&ids("one two three"))).await;
    let mut whole = chat(&json!({}));
    whole["stream"] = json!(false);
    let whole = Web::json(&harness, CHAT, &whole).await.value().await;
    for options in [json!(null), json!({}), json!({"include_usage": false})] {
        let body = chat(&json!({"stream_options": options}));
        let (events, done) = Web::json(&harness, CHAT, &body).await.events().await;
        assert!(done && events.iter().all(|event| event.get("usage").is_none()));
    }
    let body = chat(&json!({"stream_options": {"include_usage": true}}));
    let (mut events, done) = Web::json(&harness, CHAT, &body).await.events().await;
    let last = events.pop().unwrap();
    assert!(done && events.iter().all(|event| event["usage"] == Value::Null));
    assert!(events.iter().all(|event| event.get("usage").is_some()));
    assert_eq!(last["choices"], json!([]));
    for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(last["usage"][name], whole["usage"][name], "{name}");
    }
    let body =
        chat(&json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}}));
    let (events, _) = Web::json(&harness, CHAT, &body).await.events().await;
    let counts: Vec<_> = (events.iter())
        .map(|event| event["usage"]["completion_tokens"].as_u64().unwrap())
        .collect();
    assert!(counts.is_sorted() && counts[0] >= 1, "{counts:?}");
    let body = chat(&json!({"receipt": true}));
    let (events, _) = Web::json(&harness, CHAT, &body).await.events().await;
    let last = &events[events.len() - 1];
    assert_eq!(last["choices"], json!([]));
    assert!(last["receipts"][0]["ttft_us"].as_u64().unwrap() > 0);
    let mut wrong = chat(&json!({"stream_options": {"include_usage": true}}));
    wrong["stream"] = json!(false);
    let error = Web::json(&harness, CHAT, &wrong).await.error(400).await;
    assert_eq!(error["param"], "stream_options");
}

#[tokio::test]
async fn str_04_a_failure_is_told_and_never_done() {
    let config = RouterConfig {
        max_attempts: 1,
        grant_wait: Duration::from_millis(300),
        ..config()
    };
    let harness = Harness::start(config).await;
    let decode = Setup::decode("decode-0", endless()).plays_decode(|leg| async move {
        let queue = Duration::from_micros(60);
        leg.send(DecodeEvent::Scheduled(Scheduled {
            cached_tokens: 0,
            queue,
        }))
        .await;
        let begun = begun(&leg.spec, 0).unwrap();
        for position in begun..begun + 5 {
            let token = token(&endless(), &leg.spec, 0, position);
            leg.send(DecodeEvent::Token(token)).await;
        }
        Err(Status::internal("the engine has failed"))
    });
    let decode = harness.add(decode).await;
    let body = json!({"prompt": "x", "stream": true, "max_tokens": 50});
    let answer = Web::json(&harness, TEXT, &body).await;
    assert_eq!(answer.status, 200);
    let (events, done) = answer.events().await;
    assert!(!done, "{events:?}");
    let last = &events[events.len() - 1];
    assert_eq!(last["error"]["type"], "server_error", "{last}");
    assert!(
        events[..events.len() - 1]
            .iter()
            .all(|event| event.get("error").is_none())
    );
    let body = json!({"prompt": "x", "max_tokens": 50});
    let whole = Web::json(&harness, TEXT, &body).await;
    assert!(whole.status >= 500, "{}", whole.status);
    assert_eq!(whole.value().await["error"]["type"], "server_error");
    decode.until_idle().await;
    harness.until_idle().await;
}

#[tokio::test]
async fn str_01_leaving_cancels_streams_and_waits() {
    let (harness, _prefill, decode) = Harness::pair(endless()).await;
    let rounds = 40;
    for round in 0..rounds {
        let stream = round % 2 == 0;
        let body =
            json!({"prompt": [1, 2, 3], "max_tokens": 200, "stream": stream, "ignore_eos": true});
        if stream {
            let mut answer = Web::json(&harness, TEXT, &body).await;
            answer.some_events(3).await;
            // A reset, not a goodbye.
            let connection = answer.connection();
            connection.set_zero_linger().unwrap();
            drop(connection);
        } else {
            let body = json!({"prompt": [1, 2, 3], "max_tokens": 200, "n": 8}).to_string();
            let request = format!(
                "POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let before = decode.started();
            let mut connection = tokio::net::TcpStream::connect(&harness.http).await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut connection, request.as_bytes())
                .await
                .unwrap();
            decode.until_started(before + 1).await;
            connection.set_zero_linger().unwrap();
            drop(connection);
        }
    }
    decode.until_idle().await;
    harness.until_idle().await;
}

#[tokio::test]
async fn str_07_a_client_that_reads_nothing_is_given_up() {
    let config = RouterConfig {
        write_deadline: Duration::from_millis(400),
        client_buffer: 8,
        ..config()
    };
    let harness = Harness::start(config).await;
    let decode = Setup {
        pages: 5000,
        ..Setup::decode("decode-0", endless())
    };
    let decode = harness.add(decode).await;
    let body =
        json!({"prompt": [1, 2, 3], "max_tokens": 1900, "n": 16, "logprobs": 20, "stream": true});
    let answer = Web::json(&harness, TEXT, &body).await;
    let connection = answer.connection();
    // Others are served meanwhile.
    let other = json!({"prompt": [1, 2, 3], "max_tokens": 50});
    assert_eq!(Web::json(&harness, TEXT, &other).await.status, 200);
    soon(
        "the reader is given up",
        harness.until_counter("slow_readers", 1),
    )
    .await;
    decode.until_idle().await;
    harness.until_idle().await;
    drop(connection);
}
