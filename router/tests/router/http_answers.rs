//! Answers that are large: kept within limits, and counted until they have been read.

use baton_proto::v1;
use baton_router::RouterConfig;
use serde_json::{Value, json};
use tonic::Code;

use crate::fake::{FakeWorker, endless, prefill_and_decode};
use crate::harness::{Harness, config, soon};
use crate::limits::peak_memory;
use crate::web::{CHAT, TEXT, Web};

/// Room for large bodies.
const ROOM: usize = 8 << 20;
/// `<|endoftext|>`, of thirteen bytes.
const LONG: u32 = 0;
/// The byte 1: six bytes as JSON.
const CONTROL: u32 = 4;

async fn start(max_per_client: usize) -> (Harness, [FakeWorker; 2]) {
    let harness = Harness::start(RouterConfig {
        max_body_bytes: ROOM,
        max_per_client,
        ..config()
    })
    .await;
    let (prefill, decode) = prefill_and_decode(endless());
    let workers = [harness.add(prefill).await, harness.add(decode).await];
    (harness, workers)
}

/// Asks for something again until it is answered well.
async fn until_answered(harness: &Harness, path: &str, body: &Value) {
    soon("an answer", async {
        while Web::json(harness, path, body).await.status != 200 {}
    })
    .await;
}

#[tokio::test]
async fn sec_05_whole_answers_have_room_together_and_streams_need_none() {
    let (harness, _workers) = start(1000).await;
    // About 12 MB of alternatives.
    let mut body = json!({"prompt": "x", "n": 16, "max_tokens": 400, "logprobs": 20});
    let refused = Web::json(&harness, TEXT, &body).await;
    assert_eq!(refused.headers["retry-after"], "1");
    let error = refused.error(503).await;
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&ROOM.to_string()), "{message}");
    harness.until_idle().await;

    body["stream"] = json!(true);
    let (events, done) = Web::json(&harness, TEXT, &body).await.events().await;
    assert!(done);
    let tokens: usize = (events.iter())
        .filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array())
        .map(Vec::len)
        .sum();
    assert_eq!(tokens, 16 * 400);

    // A smaller one fits, one after the other.
    let chat = json!({
        "messages": [{"role": "user", "content": "x"}], "n": 8, "max_tokens": 400, "logprobs": true,
        "top_logprobs": 20,
    });
    for _ in 0..3 {
        let whole = Web::json(&harness, CHAT, &chat).await.value().await;
        assert_eq!(whole["usage"]["completion_tokens"], 8 * 400, "{whole}");
    }
    harness.until_idle().await;
}

#[tokio::test]
async fn sec_05_log_probabilities_of_prompts_have_room_together() {
    let (harness, _workers) = start(1000).await;
    let echo = |prompts: usize, n: usize, stream: bool| {
        let prompts: Vec<String> = (0..prompts)
            .map(|at| format!("{at} ").repeat(300))
            .collect();
        json!({
            "prompt": prompts, "n": n, "max_tokens": 1, "logprobs": 20, "echo": true, "stream": stream,
        })
    };
    // What each choice repeats, and what all prompts wait with.
    let error = Web::json(&harness, TEXT, &echo(1, 16, false)).await;
    error.error(503).await;
    harness.until_idle().await;
    let whole = Web::json(&harness, TEXT, &echo(1, 2, false)).await;
    let whole = whole.value().await;
    let told = |choice: usize| whole["choices"][choice]["logprobs"]["tokens"].clone();
    let tokens = told(0).as_array().unwrap().len();
    let prompt = whole["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(tokens, prompt + 1);
    assert_eq!(
        told(0).as_array().unwrap()[..prompt],
        told(1).as_array().unwrap()[..prompt]
    );
    // As a stream, the same prompt is repeated from one copy.
    let (events, done) = Web::json(&harness, TEXT, &echo(1, 16, true))
        .await
        .events()
        .await;
    assert!(done);
    let begun = (events.iter())
        .filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array())
        .filter(|tokens| tokens.len() > prompt);
    assert_eq!(begun.count(), 16);
    harness.until_idle().await;
}

#[tokio::test]
async fn sec_05_what_goes_for_all_prompts_is_refused_before_it_is_repeated() {
    let (harness, _workers) = start(1000).await;
    let long = "y".repeat(4_000_000);
    let before = peak_memory();
    for (name, value, status) in [
        ("model", json!(long), 404),
        ("cache_salt", json!(long), 400),
        ("stop", json!([long]), 400),
    ] {
        let mut body = json!({"prompt": vec!["x"; 128], "max_tokens": 1});
        body[name] = value;
        Web::json(&harness, TEXT, &body).await.error(status).await;
    }
    let risen = peak_memory() - before;
    assert!(risen < 64 * long.len(), "{risen} bytes more");
}

#[tokio::test]
async fn sec_05_a_text_of_ids_has_the_limit_of_a_message() {
    let (harness, _workers) = start(1000).await;
    let limit = 4 << 20;
    let ids = |bytes: usize| vec![LONG; bytes.div_ceil("<|endoftext|>".len())];
    let ask = async |ids: Vec<u32>| {
        let http = Web::json(&harness, "/detokenize", &json!({"tokens": ids})).await;
        let request = v1::DetokenizeRequest {
            token_ids: ids,
            ..v1::DetokenizeRequest::default()
        };
        let mut client = harness.client().max_decoding_message_size(limit + 64);
        (http, soon("a text", client.detokenize(request)).await)
    };
    let (http, grpc) = ask(ids(limit + 1)).await;
    let error = http.error(400).await;
    let words = format!("limit {limit}");
    assert!(
        error["message"].as_str().unwrap().contains(&words),
        "{error}"
    );
    let status = grpc.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().contains(&words), "{status:?}");

    let (http, grpc) = ask(ids(limit - 13)).await;
    let text = grpc.unwrap().into_inner().text;
    assert!(text.len() > limit - 26);
    assert!(http.value().await["prompt"] == text);
}

#[tokio::test]
async fn sec_05_a_large_answer_counts_until_it_has_been_read() {
    let (harness, _workers) = start(1).await;
    let large = json!({"tokens": vec![CONTROL; 1_000_000]});
    let small = json!({"tokens": [CONTROL]});
    // Six million bytes, more than lie on the way.
    let unread = Web::json(&harness, "/detokenize", &large).await;
    assert_eq!(unread.status, 200);
    let length: usize = unread.headers["content-length"].parse().unwrap();
    let refused = Web::json(&harness, "/detokenize", &small).await;
    let error = refused.error(429).await;
    assert_eq!(error["type"], "rate_limit_error", "{error}");
    assert_eq!(unread.body().await.len(), length);
    until_answered(&harness, "/detokenize", &small).await;

    let (harness, _workers) = start(1000).await;
    let unread = Web::json(&harness, "/detokenize", &large).await;
    assert_eq!(unread.status, 200);
    let refused = Web::json(&harness, "/detokenize", &large).await;
    let error = refused.error(503).await;
    assert_eq!(error["code"], "overloaded", "{error}");
    Web::json(&harness, "/detokenize", &small)
        .await
        .expect(200)
        .await;
    // Who goes away gives the room back too.
    drop(unread);
    until_answered(&harness, "/detokenize", &large).await;
}
