//! Bodies as clients write them, and what is understood of them.

use std::time::Duration;

use baton_proto::v1::generate_request::Input;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use tonic::{Code, Status};

use super::accepts::HttpBody;
use super::chat::ChatRequest;
use super::completion::CompletionRequest;
use super::error::HttpError;
use super::fields::parse;
use super::generate::Asked;
use super::routes::Generates as _;
use crate::error::RequestError;

fn chat(body: &str) -> Asked {
    parse::<ChatRequest>(body.as_bytes())
        .unwrap()
        .asked()
        .unwrap()
}

fn text(body: &str) -> Asked {
    parse::<CompletionRequest>(body.as_bytes())
        .unwrap()
        .asked()
        .unwrap()
}

#[test]
fn every_parameter_reaches_the_pipeline() {
    let asked = chat(
        r#"{"messages":[{"role":"user","content":"hi"}],"model":"m","temperature":0.5,"top_p":0.9,"top_k":7,
            "min_p":0.1,"seed":3,"n":2,"max_tokens":9,"min_tokens":2,"presence_penalty":0.5,
            "frequency_penalty":-0.5,"repetition_penalty":1.1,"logit_bias":{"5":-1.5},"stop_token_ids":[1,2],
            "stop":["a","b"],"ignore_eos":true,"logprobs":true,"top_logprobs":4,"cache_salt":"s",
            "request_id":"r","receipt":true,"stream":true,
            "stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#,
    );
    let sampling = &asked.sampling;
    assert_eq!(sampling.temperature, Some(0.5));
    assert_eq!((sampling.top_p, sampling.min_p), (Some(0.9), Some(0.1)));
    assert_eq!((sampling.top_k, sampling.seed), (Some(7), Some(3)));
    assert_eq!((sampling.n, sampling.max_tokens), (Some(2), Some(9)));
    assert_eq!(sampling.min_tokens, 2);
    let penalties = (sampling.presence_penalty, sampling.frequency_penalty);
    assert_eq!(penalties, (0.5, -0.5));
    assert_eq!(sampling.repetition_penalty, Some(1.1));
    assert_eq!(sampling.logit_bias.get(&5), Some(&-1.5));
    assert_eq!(sampling.stop_token_ids, [1, 2]);
    assert_eq!(sampling.stop, ["a", "b"]);
    assert!(sampling.ignore_eos);
    assert_eq!(
        (sampling.logprobs, sampling.prompt_logprobs),
        (Some(4), None)
    );
    assert_eq!(
        (asked.model.as_str(), asked.cache_salt.as_str()),
        ("m", "s")
    );
    let reply = &asked.reply;
    let streamed = reply.stream.unwrap();
    assert!(streamed.usage && streamed.everywhere && reply.receipt);
    assert_eq!((asked.label.as_str(), reply.choices), ("r", 2));
}

#[test]
fn prompts_are_texts_or_ids_one_or_many() {
    let kinds = |body: &str| -> Vec<String> {
        let inputs = text(body).inputs.into_iter();
        let kind = |input| match input {
            Input::Prompt(text) => text,
            Input::Tokens(tokens) => format!("{:?}", tokens.token_ids),
            Input::Chat(_) => panic!("a chat"),
        };
        inputs.map(kind).collect()
    };
    assert_eq!(kinds(r#"{"prompt":"a"}"#), ["a"]);
    assert_eq!(kinds(r#"{"prompt":["a","b"]}"#), ["a", "b"]);
    assert_eq!(kinds(r#"{"prompt":[1,2]}"#), ["[1, 2]"]);
    assert_eq!(kinds(r#"{"prompt":[[1,2],[3]]}"#), ["[1, 2]", "[3]"]);
}

#[test]
fn logprobs_have_both_forms_and_echo_asks_for_the_prompts() {
    let plain = chat(r#"{"messages":[{"role":"user","content":"hi"}],"logprobs":true}"#);
    assert_eq!(plain.sampling.logprobs, Some(0));
    let asked = text(r#"{"prompt":"a","logprobs":3,"echo":true}"#);
    let sampling = &asked.sampling;
    assert_eq!(
        (sampling.logprobs, sampling.prompt_logprobs),
        (Some(3), Some(3))
    );
    let none = text(r#"{"prompt":"a","echo":true,"logprobs":null}"#);
    assert_eq!(
        (none.sampling.logprobs, none.sampling.prompt_logprobs),
        (None, None)
    );
    assert!(none.reply.echo && !none.reply.logprobs);
}

#[test]
fn errors_name_what_is_wrong_inside_of_objects_too() {
    let wrong = |body: &str| {
        let error = parse::<ChatRequest>(body.as_bytes()).unwrap_err();
        json!(error.reply())["error"]["message"].to_string()
    };
    let message = wrong(r#"{"messages":[{"role":"user","content":"x","colour":1}]}"#);
    assert!(
        message.contains("messages") && message.contains("colour"),
        "{message}"
    );
    let message = wrong(r#"{"stream_options":{"include_usage":3}}"#);
    assert!(message.contains("include_usage"), "{message}");
    let message = wrong(r#"{"best_of":3}"#);
    assert!(
        message.contains("best_of") && message.contains('3'),
        "{message}"
    );
}

/// Bodies that each kind accepts, to be spoiled.
const BODIES: [(HttpBody, &str); 6] = [
    (
        HttpBody::Chat,
        r#"{"messages":[{"role":"user","content":"h\u00e9\ud83d\ude42"}],"stop":["a","b"],"seed":-1,"stream":true,
            "stream_options":{"include_usage":true},"logit_bias":{"5":-1.5},"temperature":1e-3}"#,
    ),
    (
        HttpBody::Chat,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"x"}],"name":"n"}],"tools":[],
            "logprobs":true,"top_logprobs":3,"metadata":{"a":[[{}]]},"response_format":{"type":"text"}}"#,
    ),
    (
        HttpBody::Completion,
        r#"{"prompt":["x",[1,2,3]],"n":2,"best_of":2,"echo":true,"logprobs":4,"stop_token_ids":[1],"top_k":-1}"#,
    ),
    (HttpBody::Completion, r#"{"prompt":[1,2,3],"min_p":0.5}"#),
    (
        HttpBody::Tokenize,
        r#"{"messages":[{"role":"tool","content":"x"}],"add_special_tokens":true}"#,
    ),
    (
        HttpBody::Detokenize,
        r#"{"model":"m","tokens":[0,4294967295]}"#,
    ),
];

#[test]
fn sec_05_spoiled_bodies_never_panic() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    for (kind, body) in BODIES {
        assert!(kind.accepts(body.as_bytes()), "{kind:?} {body}");
    }
    // What parsers look at, more often than chance would bring it.
    let words: [&[u8]; 10] = [
        b"[",
        b"{",
        b"\"",
        b"\\ud800",
        b"null",
        b"1e999",
        b"-0",
        b"18446744073709551616",
        b"\xff",
        b"\0",
    ];
    for round in 0..20_000 {
        let mut bytes = BODIES[round % BODIES.len()].1.as_bytes().to_vec();
        for _ in 0..random.random_range(1..5) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..4) {
                0 => bytes[at] = random.random(),
                1 => drop(bytes.drain(at..bytes.len().min(at + 3))),
                2 => {
                    let word = words[random.random_range(0..words.len())];
                    bytes.splice(at..at, word.iter().copied());
                }
                _ => {
                    let part = bytes[..at].to_vec();
                    bytes.extend(part);
                }
            }
            if bytes.is_empty() {
                bytes.push(b'{');
            }
        }
        for kind in HttpBody::ALL {
            kind.accepts(&bytes);
        }
    }
    for depth in [127, 129, 100_000] {
        for open in ["[", "{\"a\":"] {
            for field in ["prompt", "messages", "tools", "stop", "metadata"] {
                let deep = format!("{{\"{field}\":{}", open.repeat(depth));
                for kind in HttpBody::ALL {
                    assert!(!kind.accepts(deep.as_bytes()));
                }
            }
        }
    }
}

#[test]
fn a_failure_counts_as_what_grpc_callers_get() {
    for code in (0..=16).map(Code::from_i32) {
        let error = HttpError::from(Status::new(code, "why"));
        assert_eq!(error.grpc_code(), code);
    }
    let refusals = [
        RequestError::Unauthenticated("who?"),
        RequestError::NotPermitted("not you"),
        RequestError::UnknownModel("x".to_owned()),
        RequestError::SlowReader(Duration::from_secs(1)),
        RequestError::ShuttingDown,
    ];
    for error in refusals {
        let code = error.code();
        assert_eq!(HttpError::from(error).grpc_code(), code);
    }
}
