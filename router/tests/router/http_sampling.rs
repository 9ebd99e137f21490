//! Choices, log-probabilities and limits of prompts over HTTP.

use std::sync::Arc;

use baton_proto::domain::FinishReason;
use serde_json::{Value, json};

use crate::fake::{Script, endless, says};
use crate::harness::{Harness, MODEL, ids, prompt_of};
use crate::web::{CHAT, TEXT, Web};

#[tokio::test]
async fn smp_02_choices_go_on_when_the_first_ends() {
    let eos = MODEL.served_eos();
    let script: Script = Arc::new(move |choice, position| match (choice, position) {
        (0, 2) => (eos, Some(FinishReason::Stop)),
        _ => endless()(choice, position),
    });
    let (harness, _prefill, decode) = Harness::pair(script).await;
    // Local and split.
    for prompt in [prompt_of(5), prompt_of(100)] {
        let body = json!({
            "prompt": prompt, "n": 4, "seed": 7, "temperature": 1.0, "max_tokens": 24, "stream": true,
            "stream_options": {"include_usage": true},
        });
        let mut both = Vec::new();
        for _ in 0..2 {
            let (events, done) = Web::json(&harness, TEXT, &body).await.events().await;
            assert!(done);
            let (usage, events) = events.split_last().unwrap();
            // Up to the end that the model gave it, three tokens; the others have all theirs.
            assert_eq!(usage["usage"]["completion_tokens"], 3 + 3 * 24);
            let mut texts = vec![String::new(); 4];
            let mut ends = vec![Vec::new(); 4];
            for event in events {
                let choice = &event["choices"][0];
                let index = choice["index"].as_u64().unwrap() as usize;
                assert!(ends[index].is_empty(), "nothing follows an end");
                texts[index].push_str(choice["text"].as_str().unwrap());
                ends[index].extend(choice["finish_reason"].as_str().map(str::to_owned));
            }
            assert_eq!(ends, [["stop"], ["length"], ["length"], ["length"]]);
            both.push(texts);
        }
        assert_eq!(both[0], both[1], "the same seed");
        let mut different = both.remove(0);
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 4);
    }
    decode.until_idle().await;
    harness.until_idle().await;
}

#[tokio::test]
async fn smp_10_parts_of_characters_have_their_bytes() {
    let text = "ok 🙂";
    let (harness, _prefill, _decode) = Harness::pair(says(&ids(text))).await;
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 5, "top_k": 1,
        "temperature": 1,
    });
    let whole = Web::json(&harness, CHAT, &body).await.value().await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], text);
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(whole["usage"]["completion_tokens"], tokens.len());
    let mut bytes = Vec::new();
    for token in &tokens[..tokens.len() - 1] {
        assert!(token["logprob"].as_f64().unwrap() <= 0.0, "{token}");
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 5);
        let own: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        match std::str::from_utf8(&own) {
            Ok(text) => assert_eq!(token["token"], text),
            Err(_) => assert!(
                token["token"].as_str().unwrap().starts_with("bytes:\\x"),
                "{token}"
            ),
        }
        bytes.extend(own);
    }
    assert_eq!(bytes, text.as_bytes());
    // A prompt of one token has no log-probability of its own.
    let body = json!({"prompt": [20], "echo": true, "logprobs": 1, "max_tokens": 2});
    let whole = Web::json(&harness, TEXT, &body).await.value().await;
    let told = &whole["choices"][0]["logprobs"];
    assert_eq!(told["token_logprobs"][0], Value::Null);
    assert_eq!(told["top_logprobs"][0], Value::Null);
    assert_eq!(told["token_logprobs"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn smp_13_a_prompt_beyond_the_context_holds_nobody_up() {
    let (harness, prefill, decode) = Harness::pair(endless()).await;
    let context = MODEL.file.config().context_length as usize;
    let words = "x y z ".repeat(context);
    let tokens = json!({"prompt": prompt_of(context + 500), "max_tokens": 4});
    let text = json!({"prompt": words, "max_tokens": 4});
    let chat = json!({"messages": [{"role": "user", "content": words}], "max_tokens": 4});
    let over_long = [(TEXT, tokens), (TEXT, text), (CHAT, chat)];
    let short: Vec<Value> = [5, 6, 100]
        .map(|length| json!({"prompt": prompt_of(length), "max_tokens": 4}))
        .to_vec();
    for (path, body) in over_long {
        let answers = short.iter().map(|body| Web::json(&harness, TEXT, body));
        let refused = Web::json(&harness, path, &body);
        let (refused, answers) = tokio::join!(refused, futures::future::join_all(answers));
        let error = refused.error(400).await;
        assert_eq!(error["code"], "context_length_exceeded", "{error}");
        let limit = format!("{}", context - 1);
        assert!(
            error["message"].as_str().unwrap().contains(&limit),
            "{error}"
        );
        for answer in answers {
            let whole = answer.value().await;
            assert_eq!(whole["usage"]["completion_tokens"], 4, "{whole}");
        }
        harness.until_idle().await;
    }
    assert_eq!(
        decode.started(),
        9,
        "nothing of the others reached a worker"
    );
    assert!(prefill.started() <= 3);
}
