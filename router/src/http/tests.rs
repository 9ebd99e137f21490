//! Bodies as clients write them, and what is understood of them.

use baton_proto::v1::generate_request::Input;
use serde_json::json;

use super::chat::ChatRequest;
use super::completion::CompletionRequest;
use super::fields::parse;
use super::generate::Asked;
use super::routes::Generates as _;

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
