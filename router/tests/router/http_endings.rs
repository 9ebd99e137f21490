//! Ends over HTTP that nobody wished for: clients that leave before they were told anything, and workers
//! that end before their answer does.

use baton_proto::legs::DecodeEvent;
use serde_json::{Value, json};
use tonic::Status;

use crate::failures::{End, decode_that, impatient};
use crate::fake::{Setup, endless, token};
use crate::harness::{Harness, config, prompt_of, soon};
use crate::streaming::{PHASES, Phase, one_prompt_at_a_time, stuck};
use crate::web::{CHAT, JSON, TEXT, Web, leave};

/// A prompt that is split, which shares nothing with others.
fn long(max_tokens: u32, stream: bool) -> Value {
    let salt = rand::random::<u64>().to_string();
    json!({
        "prompt": prompt_of(100), "max_tokens": max_tokens, "cache_salt": salt, "stream": stream,
    })
}

#[tokio::test]
async fn str_02_leaving_before_the_first_token_stops_prefill() {
    let harness = Harness::start(config()).await;
    let prefill = harness.add(one_prompt_at_a_time()).await;
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    for number in 1..=10 {
        let body = long(20, number % 2 == 0);
        leave(&harness, TEXT, &body, prefill.until_started(number)).await;
    }
    // Its turn comes, which it would not behind any of them.
    let answer = Web::json(&harness, TEXT, &long(3, false)).await;
    answer.expect(200).await;
    assert_eq!(prefill.started(), 11);
    prefill.until_idle().await;
    decode.until_idle().await;
    harness.until_idle().await;
    harness.until_counter("requests_cancelled", 10).await;
}

#[tokio::test]
async fn str_02_leaving_releases_both_workers_in_every_phase() {
    for phase in PHASES {
        for stream in [true, false] {
            let harness = Harness::start(config()).await;
            let (prefill, decode) = stuck(phase);
            let prefill = harness.add(prefill).await;
            let decode = harness.add(decode).await;
            let there = async {
                prefill.until_started(1).await;
                if phase != Phase::Queued {
                    decode.until_started(1).await;
                }
            };
            leave(&harness, TEXT, &long(1500, stream), there).await;
            soon("prefill is released", prefill.until_idle()).await;
            soon("decode is released", decode.until_idle()).await;
            harness.until_idle().await;
            harness.until_counter("requests_cancelled", 1).await;
            assert_eq!(harness.counter("worker_failures").await, 0, "{phase:?}");
        }
    }
}

/// What a stream said before it failed: some text, no end; and how it failed.
fn failed(events: &[Value], done: bool) -> &Value {
    assert!(!done, "[DONE] after a failure: {events:?}");
    let (last, others) = events.split_last().unwrap();
    assert!(others.len() >= 2, "some tokens came: {events:?}");
    for event in others {
        assert!(event.get("error").is_none());
        assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
    }
    let error = &last["error"];
    assert_eq!(error["type"], "server_error", "{last}");
    error
}

/// The same request streamed and whole, short and long: an error each time, and never a success.
async fn fails_everywhere(ends: End, code: &str, said: &str) {
    let chat = |length: usize| {
        let message = json!([{"role": "user", "content": "x y z ".repeat(length)}]);
        (CHAT, json!({"messages": message, "max_tokens": 50}))
    };
    let text = |length: usize| {
        let prompt = prompt_of(length);
        (TEXT, json!({"prompt": prompt, "max_tokens": 50}))
    };
    for (path, mut body) in [chat(1), chat(60), text(5), text(100)] {
        let harness = Harness::start(impatient()).await;
        let prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
        let _decode = harness.add(decode_that(ends)).await;
        body["stream"] = json!(true);
        let answer = Web::json(&harness, path, &body).await;
        assert_eq!(answer.status, 200, "it has begun");
        let (events, done) = answer.events().await;
        let error = failed(&events, done);
        assert_eq!(error["code"], code, "{error}");
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");

        let harness = Harness::start(impatient()).await;
        let _prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
        let _decode = harness.add(decode_that(ends)).await;
        body["stream"] = json!(false);
        let error = Web::json(&harness, path, &body).await.error(503).await;
        assert_eq!(error["code"], code, "{error}");
        harness.until_idle().await;
        harness.until_counter("requests_unavailable", 1).await;
        assert_eq!(harness.counter("requests_ok").await, 0);
        prefill.until_idle().await;
    }
}

#[tokio::test]
async fn str_04_a_stream_that_ends_well_without_its_last_message_has_failed() {
    fails_everywhere(|_| Ok(()), "worker_unavailable", "decode-0 was lost").await;
}

#[tokio::test]
async fn str_04_a_lost_connection_is_told_and_never_done() {
    let harness = Harness::start(impatient()).await;
    let _prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
    let mut decode = harness.add(Setup::decode("decode-0", endless())).await;
    let mut answer = Web::json(&harness, TEXT, &long(1900, true)).await;
    let mut events = Vec::new();
    for _ in 0..5 {
        events.push(answer.event().await);
    }
    decode.kill();
    let (rest, done) = answer.events().await;
    events.extend(rest);
    let error = failed(&events, done);
    assert_eq!(error["code"], "worker_unavailable", "{error}");
    harness.until_idle().await;
    assert_eq!(harness.counter("requests_ok").await, 0);
}

#[tokio::test]
async fn str_05_a_drain_that_cuts_tokens_off_is_no_success() {
    let ends: End = |_| Err(Status::unavailable("drain_limit: shutting down"));
    fails_everywhere(ends, "worker_unavailable", "drain_limit").await;
}

#[tokio::test]
async fn str_05_an_operators_cancel_is_no_success() {
    let ends: End = |_| Err(Status::aborted("cancelled by an operator"));
    fails_everywhere(ends, "worker_unavailable", "was lost").await;
}

#[tokio::test]
async fn str_05_a_fault_of_the_engine_is_no_success() {
    let ends: End = |_| Err(Status::internal("pages could not be loaded"));
    fails_everywhere(ends, "worker_unavailable", "pages could not be loaded").await;
}

/// A worker that says everything but that it has ended.
fn never_done() -> Setup {
    Setup::decode("decode-0", endless()).plays_decode(|leg| async move {
        for position in 0..leg.spec.params.max_tokens {
            let token = token(&endless(), &leg.spec, 0, position);
            leg.send(DecodeEvent::Token(token)).await;
        }
        std::future::pending().await
    })
}

#[tokio::test]
async fn a_deadline_after_the_last_token_costs_the_workers_report_alone() {
    let harness = Harness::start(config()).await;
    let decode = harness.add(never_done()).await;
    let body = json!({"prompt": prompt_of(5), "max_tokens": 3, "stream": true}).to_string();
    // Less than the wait for a report: it passes while that goes on, unless all is slow today.
    let head = format!("{JSON}X-Baton-Timeout-Ms: 300\r\n");
    let mut finished = false;
    for _ in 0..20 {
        let answer = Web::post(&harness.http, TEXT, &head, body.as_bytes()).await;
        let (events, done) = answer.events().await;
        let ends = |event: &Value| event["choices"][0]["finish_reason"] == "length";
        finished = events.iter().any(ends);
        assert_eq!(done, finished, "{events:?}");
        if finished {
            break;
        }
    }
    assert!(finished, "no answer was in time");
    decode.until_idle().await;
    harness.until_idle().await;
}
