//! HTTP against the real engine: the same tokens as over gRPC, by keys and under TLS, with the tools that
//! clients have.

use std::process::Command;

use serde_json::{Value, json};

use crate::certificates::Authority;
use crate::models::{chat, default_model, endless, slow_model, tiny_model, tiny_prompt, with};
use crate::process::{Process, baton};
use crate::service::{Roles, Setup};

const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXT: &str = "/v1/completions";

/// Runs curl with these arguments; what it wrote, with the status behind.
pub(crate) fn curl(arguments: &[&str]) -> (u16, String) {
    let ended = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--write-out",
            "\n%{http_code}",
        ])
        .args(arguments)
        .output()
        .expect("curl starts");
    let written = String::from_utf8(ended.stdout).expect("text");
    let (body, status) = written.rsplit_once('\n').expect("a status");
    let errors = String::from_utf8_lossy(&ended.stderr);
    let status = status.parse().expect("a status");
    (
        status,
        if status == 0 {
            errors.into_owned()
        } else {
            body.to_owned()
        },
    )
}

/// Posts JSON.
pub(crate) fn post(process: &Process, path: &str, body: &Value, more: &[&str]) -> (u16, String) {
    let url = format!("http://{}{path}", process.http());
    let body = body.to_string();
    let json = [
        "--header",
        "Content-Type: application/json",
        "--data",
        &body,
    ];
    curl(&[&json, more, &[&url]].concat())
}

pub(crate) fn answer(process: &Process, path: &str, body: &Value) -> Value {
    let (status, body) = post(process, path, body, &[]);
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).expect("JSON")
}

/// Numbers as the bits that gRPC carries.
fn bits(numbers: &Value) -> Vec<u32> {
    let numbers = numbers.as_array().expect("a list").iter();
    numbers
        .map(|number| (number.as_f64().expect("a number") as f32).to_bits())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn smp_10_http_and_grpc_say_the_same_to_the_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    for local in [0, 1000] {
        let service = Setup::new(&tiny_model(folder.path()))
            .flag("--local-prefill-tokens", local)
            .start()
            .await;
        let prompt = tiny_prompt(3, 90);
        let request = with(endless(prompt.clone(), 12), |sampling| {
            (sampling.logprobs, sampling.prompt_logprobs) = (Some(2), Some(2));
            (sampling.n, sampling.seed, sampling.temperature) = (Some(3), Some(7), Some(0.9));
        });
        let expected = service.generate(request).await.expect("an answer");
        let body = json!({
            "prompt": prompt, "max_tokens": 12, "ignore_eos": true, "logprobs": 2, "echo": true, "n": 3,
            "seed": 7, "temperature": 0.9,
        });
        let whole = answer(&service.process, TEXT, &body);
        let usage = &whole["usage"];
        assert_eq!(
            (&usage["prompt_tokens"], &usage["completion_tokens"]),
            (&json!(90), &json!(36))
        );
        let mut texts = Vec::new();
        for (index, choice) in &expected.choices {
            let got = &whole["choices"][*index as usize];
            assert_eq!(got["finish_reason"], "length");
            let text = got["text"].as_str().expect("a text");
            assert!(
                text.ends_with(&choice.text),
                "{text:?} and {:?}",
                choice.text
            );
            texts.push(choice.text.clone());
            let mut logprobs = got["logprobs"]["token_logprobs"].clone();
            let first = logprobs.as_array_mut().expect("a list").remove(0);
            assert_eq!(first, Value::Null, "the first token of a prompt has none");
            let told = [&expected.prompt.logprobs[..], &choice.logprobs].concat();
            assert_eq!(bits(&logprobs), told);
            for name in ["tokens", "top_logprobs", "text_offset"] {
                let length = got["logprobs"][name].as_array().expect("a list").len();
                assert_eq!(length, 102, "{name}");
            }
        }
        texts.dedup();
        assert_eq!(texts.len(), 3, "choices differ");
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn smp_02_streams_of_several_choices_are_those_of_whole_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let mut body = json!({
        "messages": [{"role": "user", "content": "Once upon"}], "max_tokens": 24, "n": 4, "seed": 7,
        "logprobs": true, "top_logprobs": 3,
    });
    let whole = answer(&service.process, CHAT, &body);
    assert_eq!(
        answer(&service.process, CHAT, &body)["choices"],
        whole["choices"]
    );
    body["stream"] = json!(true);
    let (status, events) = post(&service.process, CHAT, &body, &["--no-buffer"]);
    assert_eq!(status, 200, "{events}");
    assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    let mut choices = vec![(String::new(), Vec::<Value>::new(), Value::Null); 4];
    for event in events
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: {"))
    {
        let event: Value = serde_json::from_str(&format!("{{{event}")).expect("JSON");
        let told = &event["choices"][0];
        let choice = &mut choices[told["index"].as_u64().expect("an index") as usize];
        choice.0 += told["delta"]["content"].as_str().unwrap_or_default();
        let tokens = told["logprobs"]["content"].as_array();
        choice.1.extend(tokens.cloned().unwrap_or_default());
        if !told["finish_reason"].is_null() {
            assert!(choice.2.is_null(), "finished twice");
            choice.2 = told["finish_reason"].clone();
        }
    }
    for (index, (text, tokens, finish)) in choices.into_iter().enumerate() {
        let expected = &whole["choices"][index];
        assert_eq!(expected["message"]["content"], text);
        assert_eq!(expected["logprobs"]["content"], json!(tokens));
        assert_eq!(expected["finish_reason"], finish);
    }
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_chat_is_answered() {
    let service = Setup::new(&default_model()).start().await;
    let question = "What is the capital of France? Answer in one sentence.";
    let body = json!({
        "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 32, "receipt": true,
    });
    let value = answer(&service.process, CHAT, &body);
    let message = &value["choices"][0]["message"];
    assert_eq!(message["content"], "The capital of France is Paris.");
    assert_eq!(value["usage"]["prompt_tokens"], 42);
    assert!(value["receipts"][0]["ttft_us"].as_u64().expect("a time") > 0);
    let over_grpc = service
        .generate(chat(question, 32))
        .await
        .expect("an answer");
    assert_eq!(message["content"], over_grpc.text());
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn str_01_a_client_that_goes_away_gives_its_pages_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&slow_model(folder.path())).start().await;
    for stream in [true, false, true] {
        let body = json!({
            "prompt": tiny_prompt(9, 600), "max_tokens": 3000, "ignore_eos": true, "stream": stream,
        });
        let (_, what) = post(&service.process, TEXT, &body, &["--max-time", "0.5"]);
        assert!(!what.contains("[DONE]"), "it did not last");
        service.assert_idle().await;
    }
    assert_eq!(service.counter("requests_cancelled").await, 3);
}

#[test]
fn keys_and_certificates_are_asked_for_as_over_grpc() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = baton(&["keys", "new", "one"]);
    let key = made.stdout.trim().to_owned();
    let (_, lines) = made.stderr.split_once("\n\n").expect("lines");
    let list = folder.path().join("keys.toml");
    std::fs::write(&list, lines).expect("writable");
    let list = list.display().to_string();
    let roles = Roles::new(&tiny_model(folder.path()));
    let peers = Authority::new(folder.path(), "peers");
    let (own, worker) = (peers.sign("router"), peers.sign("decode"));
    let http = ["--http-listen", "127.0.0.1:0", "--api-keys", &list];
    let router = roles.router(&[&own.flags(&peers.ca)[..], &http].concat());
    let _decode = roles.worker("decode", &router, &worker.flags(&peers.ca));

    let url = |path: &str| format!("https://{}{path}", router.http());
    let trusted = ["--cacert", &peers.ca];
    let ask = |more: &[&str], path: &str| curl(&[&trusted, more, &[&url(path)]].concat());
    assert_eq!(ask(&[], "/health"), (200, String::new()));
    let (status, said) = ask(&[], "/v1/models");
    assert_eq!(status, 401, "{said}");
    assert!(said.contains("authentication_error"), "{said}");
    let wrong = format!("Authorization: Bearer {}0", &key[..key.len() - 1]);
    assert_eq!(ask(&["--header", &wrong], "/v1/models").0, 401);
    let right = format!("Authorization: Bearer {key}");
    let (status, said) = ask(&["--header", &right], "/v1/models");
    assert_eq!(status, 200);
    assert!(said.contains("max_model_len"), "{said}");
    let body = json!({"prompt": "x", "max_tokens": 2}).to_string();
    let head = [
        "--header",
        &right,
        "--header",
        "Content-Type: application/json",
        "--data",
        &body,
    ];
    let (status, said) = ask(&head, TEXT);
    assert_eq!(status, 200, "{said}");
    // Without TLS, and to strangers of this CA, nothing is said.
    let plain = format!("http://{}/health", router.http());
    assert_eq!(curl(&[&plain]).0, 0);
    assert_eq!(curl(&[&url("/health")]).0, 0);
    assert!(!router.log().contains(&key), "a key in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_is_off_where_it_is_not_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path());
    let service = Setup::new(&model).start().await;
    assert_eq!(
        curl(&[&format!("http://{}/health", service.process.http())]).0,
        200
    );
    drop(service);
    let roles = Roles::new(&model);
    for router in [roles.router(&[]), roles.router(&["--http-listen", "off"])] {
        let ports = crate::process::listening_ports(router.pid());
        assert_eq!(ports.len(), 1, "{ports:?}");
    }
    let model = model.display().to_string();
    let refused = baton(&["router", "--model", &model, "--http-listen", "nowhere"]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("--http-listen") && refused.stderr.contains("nowhere"),
        "{refused:#?}"
    );
    let open = [
        "router",
        "--model",
        &model,
        "--listen",
        "127.0.0.1:0",
        "--http-listen",
        "0.0.0.0:0",
    ];
    let refused = baton(&open);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--insecure-listen"), "{refused:#?}");
}
