//! Answers over HTTP piece by piece: what comes when, how it ends, and that leaving cancels.

use std::sync::Arc;

use baton_proto::legs::DecodeEvent;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fake::{Setup, endless, says, token};
use crate::harness::{Harness, MODEL, config, ids, soon};
use crate::streaming::for_slow_readers;
use crate::web::{CHAT, TEXT, Web, leave};

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
    let told = ids(text);
    assert!(
        ids("🙂").len() > 1 && ids("日").len() > 1,
        "characters of several tokens"
    );
    assert_eq!(MODEL.text.decode(&told, true).unwrap(), text);
    let (harness, _prefill, _decode) = Harness::pair(says(&told)).await;
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

    let body = json!({"prompt": "x", "stream": true, "max_tokens": 50});
    let (events, done) = Web::json(&harness, TEXT, &body).await.events().await;
    assert!(done && !json!(events).to_string().contains('\u{FFFD}'));
    let texts: String = (events.iter())
        .map(|event| event["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, text);
}

#[tokio::test]
async fn tok_02_a_cut_in_a_character_is_a_normal_end() {
    let all = ids("ok 🙂");
    let (harness, _prefill, _decode) = Harness::pair(says(&all)).await;
    // The smiley has four bytes, a token each: it lacks one to all of them.
    for tokens in all.len() - 4..all.len() {
        let cut = json!({"max_tokens": tokens});
        let answer = Web::json(&harness, CHAT, &chat(&cut)).await;
        assert_eq!(answer.status, 200);
        let (events, done) = answer.events().await;
        assert!(done);
        let last = &events[events.len() - 1]["choices"][0];
        assert_eq!(last["finish_reason"], "length");
        assert_eq!(
            contents(&events),
            "ok ",
            "what is no whole character is left out"
        );
        let mut whole = chat(&cut);
        whole["stream"] = json!(false);
        let whole = Web::json(&harness, CHAT, &whole).await.value().await;
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"], "ok ");
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!(whole["usage"]["completion_tokens"], tokens);
    }
}

#[tokio::test]
async fn smp_15_stop_strings_end_the_text_in_both_modes() {
    let fox = "The quick brown fox";
    for (text, stop, expected) in [
        (fox, json!(["own fox"]), "The quick br"),
        (fox, json!("ck br"), "The qui"),
        (fox, json!(["The"]), ""),
        (fox, json!(["x"]), "The quick brown fo"),
        (fox, json!([" "]), "The"),
        (fox, json!(["cat", "brown"]), "The quick "),
        ("xxabcd", json!(["ab", "abc"]), "xx"),
        ("in 日本 now", json!(["日本"]), "in "),
        (fox, json!(["zzz"]), fox),
    ] {
        let (harness, _prefill, _decode) = Harness::pair(says(&ids(text))).await;
        let more = json!({"stop": stop, "stream_options": {"include_usage": true}});
        let (events, done) = Web::json(&harness, CHAT, &chat(&more)).await.events().await;
        assert!(done);
        assert_eq!(contents(&events), expected, "{text} {stop}");
        let finish = &events[events.len() - 2]["choices"][0]["finish_reason"];
        assert_eq!(finish, "stop");
        let mut whole = chat(&json!({"stop": stop}));
        whole["stream"] = json!(false);
        let whole = Web::json(&harness, CHAT, &whole).await.value().await;
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"], expected);
        assert_eq!(choice["finish_reason"], "stop");
        let tokens = &whole["usage"]["completion_tokens"];
        assert_eq!(
            events[events.len() - 1]["usage"]["completion_tokens"],
            *tokens
        );
        // Those up to the one that completed the stop string, or all and the end.
        let all = ids(text);
        let needed = (1..=all.len()).find(|&count| {
            let so_far = MODEL.text.decode(&all[..count], true).unwrap();
            let matches = |stop: &Value| so_far.contains(stop.as_str().unwrap());
            stop.as_array()
                .map_or_else(|| matches(&stop), |all| all.iter().any(matches))
        });
        assert_eq!(*tokens, needed.unwrap_or(all.len() + 1), "{text} {stop}");
        harness.until_idle().await;
    }
}

/// The text without the longest end that could begin the stop string.
fn without_beginning<'a>(text: &'a str, stop: &str) -> &'a str {
    let end = (0..=text.len())
        .filter(|&at| text.is_char_boundary(at))
        .find(|&at| stop.starts_with(&text[at..]));
    &text[..end.unwrap_or(text.len())]
}

#[tokio::test]
async fn smp_16_only_what_could_begin_a_stop_string_is_held() {
    let text = "a quick brown fox jumps over it, over and over, ".repeat(3);
    let told = ids(&text)[..60].to_vec();
    let shown = |count: usize| MODEL.text.decode(&told[..count], true).unwrap();
    for stop in ["Z".repeat(200), "over itself".to_owned()] {
        // The worker says each token when the client has seen all it may of those before.
        let gate = Arc::new(Semaphore::new(0));
        let (opens, script) = (Arc::clone(&gate), says(&told));
        let decode = Setup::decode("decode-0", endless()).plays_decode(move |leg| {
            let (gate, script) = (Arc::clone(&gate), Arc::clone(&script));
            async move {
                for position in 0..60 {
                    gate.acquire().await.unwrap().forget();
                    let token = token(&script, &leg.spec, 0, position);
                    leg.send(DecodeEvent::Token(token)).await;
                }
                leg.done().await;
                Ok(())
            }
        });
        let harness = Harness::start(config()).await;
        let _decode = harness.add(decode).await;
        let body = json!({"prompt": "x", "stream": true, "max_tokens": 60, "stop": [stop]});
        let asked = async {
            opens.add_permits(1);
            Web::json(&harness, TEXT, &body).await
        };
        let mut answer = asked.await;
        let (mut seen, mut empty) = (String::new(), 0);
        for count in 1..=60 {
            if count > 1 {
                opens.add_permits(1);
            }
            let so_far = shown(count);
            // The last token ends the wait for more.
            let expected = if count == 60 {
                &so_far
            } else {
                without_beginning(&so_far, &stop)
            };
            while seen != expected {
                let event = answer.event().await;
                let piece = event["choices"][0]["text"].as_str().unwrap();
                empty += usize::from(piece.is_empty());
                seen.push_str(piece);
                assert!(expected.starts_with(&seen), "{seen:?} of {expected:?}");
            }
        }
        assert_eq!((seen, empty), (shown(60), 0));
        let (rest, done) = answer.events().await;
        assert!(done && rest.len() <= 1, "{rest:?}");
        let mut whole = body;
        whole["stream"] = json!(false);
        opens.add_permits(60);
        let whole = Web::json(&harness, TEXT, &whole).await.value().await;
        assert_eq!(whole["choices"][0]["text"], shown(60));
        assert_eq!(whole["choices"][0]["finish_reason"], "length");
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
async fn str_01_leaving_cancels_streams_and_waits() {
    let (harness, _prefill, decode) = Harness::pair(endless()).await;
    let rounds = 100;
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
            let body = json!({"prompt": [1, 2, 3], "max_tokens": 200, "n": 8});
            let before = decode.started();
            leave(&harness, TEXT, &body, decode.until_started(before + 1)).await;
        }
    }
    decode.until_idle().await;
    harness.until_idle().await;
    harness.until_counter("requests_cancelled", rounds).await;
    assert!(decode.cancelled() as u64 >= rounds / 2, "streams had begun");
    assert_eq!(harness.counter("requests_ok").await, 0);
}

#[tokio::test]
async fn str_07_a_client_that_reads_nothing_is_given_up() {
    let (harness, decode) = for_slow_readers().await;
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
