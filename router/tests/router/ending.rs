//! A router that is told to end: what runs at its limit is told so, and answers are not torn.

use std::time::Duration;

use baton_router::RouterConfig;
use serde_json::json;
use tonic::Code;
use tonic::transport::Endpoint;

use baton_proto::v1::inference_service_client::InferenceServiceClient;

use crate::fake::{endless, prefill_and_decode};
use crate::harness::{Answer, Harness, config, first_token, long, prompt_of, soon};
use crate::streaming::{Phase, stuck};
use crate::web::{JSON, TEXT, Web};

#[tokio::test]
async fn k8s_01_what_runs_at_the_drain_limit_ends_with_an_error_that_says_why() {
    let config = RouterConfig {
        drain_timeout: Duration::from_millis(100),
        ..config()
    };
    let mut harness = Harness::start(config).await;
    // Begins, and never ends.
    let (prefill, decode) = stuck(Phase::Decoding);
    let prefill = harness.add(prefill).await;
    let decode = harness.add(decode).await;
    let body = |stream| json!({"prompt": prompt_of(100), "max_tokens": 1900, "stream": stream});
    let mut events = Web::json(&harness, TEXT, &body(true)).await;
    events.some_events(1).await;
    let mut stream = harness
        .client()
        .generate(long(1900))
        .await
        .unwrap()
        .into_inner();
    first_token(&mut stream).await;
    let (http, asked) = (harness.http.clone(), body(false).to_string());
    let whole = Web::post(&http, TEXT, JSON, asked.as_bytes());
    let ends = async {
        decode.until_started(3).await;
        soon("the router ends", harness.end()).await.unwrap();
    };
    let (whole, ()) = tokio::join!(whole, ends);

    let status = loop {
        match soon("an end", stream.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended as if it were complete"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("shutting down"), "{status:?}");
    let (events, done) = events.events().await;
    assert!(!done, "[DONE] after a failure: {events:?}");
    let error = &events.last().expect("an error")["error"];
    assert_eq!(error["type"], "server_error", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("shutting down"), "{error}");
    let error = whole.error(503).await;
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("shutting down"), "{error}");
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test]
async fn k8s_01_a_finished_answer_that_is_read_slowly_is_not_torn() {
    const TOKENS: u32 = 400;
    let config = RouterConfig {
        // All of it is on its way at once.
        client_buffer: 4096,
        ..config()
    };
    let mut harness = Harness::start(config).await;
    let (prefill, decode) = prefill_and_decode(endless());
    let _prefill = harness.add(prefill).await;
    let _decode = harness.add(decode).await;
    let narrow = Endpoint::from_shared(format!("http://{}", harness.address)).unwrap();
    let narrow = narrow
        .initial_stream_window_size(1024)
        .initial_connection_window_size(65_535);
    let mut client = InferenceServiceClient::new(narrow.connect_lazy());
    let mut stream = soon("the call", client.generate(long(TOKENS)))
        .await
        .unwrap()
        .into_inner();
    harness.until_counter("requests_ok", 1).await;
    let mut ended = harness.end();
    // Far longer than an idle connection would be left.
    let early = tokio::time::timeout(Duration::from_millis(1500), &mut ended).await;
    assert!(early.is_err(), "it ends before its answer is read");
    let (begun, mut answer) = (std::time::Instant::now(), Answer::default());
    while let Some(response) = soon("an event", stream.message()).await.unwrap() {
        answer.take(response.event.unwrap(), begun);
    }
    assert_eq!(answer.whole().only().ids.len(), TOKENS as usize);
    soon("the router ends", ended).await.unwrap();
}
