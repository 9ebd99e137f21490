//! Sampling over HTTP against real engines: what is asked for at the edges of what may be, and that nobody's
//! neighbours change what it gets.

use baton_model_file::fixtures::TinyModel;
use serde_json::{Map, Value, json};

use crate::http::{TEXT, answer, post};
use crate::models::{default_model, tiny_model, tiny_prompt};
use crate::process::Process;
use crate::service::Setup;

/// Answers to requests that are asked all at once.
fn all_at_once(process: &Process, bodies: &[Value]) -> Vec<Value> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = (bodies.iter())
            .map(|body| scope.spawn(move || answer(process, TEXT, body)))
            .collect();
        let answers = asked
            .into_iter()
            .map(|asked| asked.join().expect("an answer"));
        answers.collect()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn smp_01_neighbours_change_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path());
    let seeded = |max_tokens: u32| {
        json!({
            "prompt": "The capital of France is", "seed": 42, "temperature": 0.8, "max_tokens": max_tokens,
            "ignore_eos": true, "logprobs": 3, "receipt": true,
        })
    };
    let neighbour = |seed: u64, max_tokens: u32| {
        json!({
            "prompt": tiny_prompt(seed, 30), "temperature": 0.9, "max_tokens": max_tokens, "ignore_eos": true,
        })
    };
    let service = Setup::new(&model).start().await;
    let short = answer(&service.process, TEXT, &seeded(16))["choices"].clone();
    let long = answer(&service.process, TEXT, &seeded(120))["choices"].clone();
    for round in 0..20 {
        let mut bodies = vec![seeded(16)];
        // None, one, or seven others, who come before it and end at any time.
        let others = [0, 1, 7][round as usize % 3];
        bodies
            .extend((0..others).map(|other| neighbour(100 * round + other, 5 + 3 * other as u32)));
        bodies.reverse();
        let answers = all_at_once(&service.process, &bodies);
        assert_eq!(answers[others as usize]["choices"], short, "round {round}");
    }
    service.assert_idle().await;
    drop(service);

    // A pool that all of them together grow out of.
    let service = Setup::new(&model).flag("--pages", 36).start().await;
    for round in 0.. {
        let mut bodies: Vec<_> = (0..7).map(|other| neighbour(other, 100)).collect();
        bodies.push(seeded(120));
        let answers = all_at_once(&service.process, &bodies);
        assert_eq!(answers[7]["choices"], long, "round {round}");
        let preempted = answers[7]["receipts"][0]["preemptions"].as_u64();
        if preempted.expect("a number") > 0 {
            break;
        }
        assert!(round < 60, "it was never preempted");
    }
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn smp_06_a_bias_against_every_token_is_no_fault() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = TinyModel {
        vocabulary: 290,
        ..TinyModel::default()
    };
    let path = folder.path().join("few.gguf");
    model.write_gguf(&path).expect("the folder is writable");
    let service = Setup::new(&path).start().await;
    let plain = json!({"prompt": [20, 30, 40], "max_tokens": 8, "temperature": 0, "logprobs": 5});
    let expected = answer(&service.process, TEXT, &plain);
    let ids: Map<String, Value> = (0..290).map(|id| (id.to_string(), json!(-100))).collect();
    let mut biased = plain.clone();
    biased["logit_bias"] = json!(ids);
    for temperature in [0.0, 1.0] {
        biased["temperature"] = json!(temperature);
        let banned = answer(&service.process, TEXT, &biased);
        for logprob in logprobs(&banned) {
            assert!(logprob.is_finite() && logprob <= 0.0, "{banned}");
        }
    }
    // Alike for all, it changes nothing for the greedy.
    biased["temperature"] = json!(0);
    let banned = answer(&service.process, TEXT, &biased);
    assert_eq!(banned["choices"][0]["text"], expected["choices"][0]["text"]);
    assert_eq!(
        answer(&service.process, TEXT, &plain)["choices"],
        expected["choices"]
    );
    service.assert_idle().await;
}

fn logprobs(answer: &Value) -> Vec<f64> {
    let told = &answer["choices"][0]["logprobs"];
    let chosen = told["token_logprobs"].as_array().expect("a list").iter();
    let tops = told["top_logprobs"].as_array().expect("a list").iter();
    let tops = tops.flat_map(|top| top.as_object().expect("an object").values());
    chosen
        .chain(tops)
        .map(|one| one.as_f64().expect("a finite number"))
        .collect()
}

fn tokens(answer: &Value) -> &Value {
    &answer["choices"][0]["logprobs"]["tokens"]
}

fn france(more: &Value) -> Value {
    let mut body = json!({
        "prompt": "The capital of France is", "max_tokens": 8, "seed": 7, "logprobs": 2, "ignore_eos": true,
    });
    let more = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

/// The request is refused by the name of its parameter.
fn refused(process: &Process, body: &Value, name: &str) {
    let (status, said) = post(process, TEXT, body, &[]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (status, &said["error"]["param"]),
        (400, &json!(name)),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn smp_07_temperatures_at_their_edges() {
    let service = Setup::new(&default_model()).start().await;
    let process = &service.process;
    let greedy = answer(process, TEXT, &france(&json!({"temperature": 0})));
    for temperature in [1e-45, 1e-8, 1e-5] {
        let cold = answer(process, TEXT, &france(&json!({"temperature": temperature})));
        assert_eq!(cold["choices"], greedy["choices"], "{temperature}");
    }
    for temperature in [1e-4, 0.001, 2.0, 10.0] {
        let body = france(&json!({"temperature": temperature}));
        let warm = answer(process, TEXT, &body);
        assert!(
            logprobs(&warm)
                .iter()
                .all(|one| one.is_finite() && *one <= 0.0)
        );
        assert_eq!(tokens(&warm).as_array().expect("a list").len(), 8);
        assert_eq!(answer(process, TEXT, &body)["choices"], warm["choices"]);
    }
    for temperature in [-0.1, 10.1, 1e6, 1e39] {
        refused(
            process,
            &france(&json!({"temperature": temperature})),
            "temperature",
        );
    }
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn smp_08_filters_at_their_edges() {
    let service = Setup::new(&default_model()).start().await;
    let process = &service.process;
    let greedy = answer(process, TEXT, &france(&json!({"temperature": 0})));
    for temperature in [0.7, 2.0] {
        let ask = |more: Value| {
            let mut body = france(&more);
            body["temperature"] = json!(temperature);
            answer(process, TEXT, &body)
        };
        // What leaves one token leaves the best.
        for one in [
            json!({"top_p": 1e-9}),
            json!({"top_k": 1}),
            json!({"min_p": 1.0}),
            json!({"top_k": 1, "top_p": 1e-9, "min_p": 1.0, "repetition_penalty": 1.0}),
        ] {
            assert_eq!(tokens(&ask(one.clone())), tokens(&greedy), "{one}");
        }
        for some in [
            json!({"top_p": 0.0001}),
            json!({"top_p": 0.5}),
            json!({"top_p": 1.0}),
            json!({"top_k": 50, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1,
                "presence_penalty": 0.5, "frequency_penalty": 0.5}),
        ] {
            let answered = ask(some.clone());
            assert!(logprobs(&answered).iter().all(|one| *one <= 0.0), "{some}");
            assert_eq!(answered["usage"]["completion_tokens"], 8);
        }
    }
    for top_p in [0.0, 1.000_000_2, -0.1, 2.0] {
        refused(process, &france(&json!({"top_p": top_p})), "top_p");
    }
    for min_p in [-0.1, 1.1] {
        refused(process, &france(&json!({"min_p": min_p})), "min_p");
    }
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn smp_10_filtered_tokens_have_numbers_too() {
    let service = Setup::new(&default_model()).start().await;
    let process = &service.process;
    let body = france(&json!({"top_k": 1, "logprobs": 5, "temperature": 1}));
    let filtered = answer(process, TEXT, &body);
    let tops = filtered["choices"][0]["logprobs"]["top_logprobs"].as_array();
    for top in tops.expect("a list") {
        assert_eq!(top.as_object().expect("an object").len(), 5, "{top}");
    }
    assert!(
        logprobs(&filtered)
            .iter()
            .all(|one| one.is_finite() && *one <= 0.0)
    );
    let body = json!({"prompt": "The", "echo": true, "logprobs": 2, "max_tokens": 1});
    let echoed = answer(process, TEXT, &body);
    assert_eq!(echoed["usage"]["prompt_tokens"], 1);
    let told = &echoed["choices"][0]["logprobs"];
    assert_eq!(told["token_logprobs"][0], Value::Null);
    assert!(told["token_logprobs"][1].as_f64().expect("a number") <= 0.0);
    service.assert_idle().await;
}
