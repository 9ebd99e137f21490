//! What clients may ask, and what they are told when they may not.

use std::time::Duration;

use baton_proto::retry_after;
use baton_proto::v1;
use baton_proto::v1::generate_request::Input;
use baton_router::RouterConfig;
use tonic::Code;

use crate::fake::{Setup, endless};
use crate::harness::{
    Answer, Harness, MODEL, by_ids, config, first_token, long, prompt_of, soon, status_of, with,
};

fn by_text(text: impl Into<String>) -> v1::GenerateRequest {
    let request = by_ids(vec![1], 3);
    v1::GenerateRequest {
        input: Some(Input::Prompt(text.into())),
        ..request
    }
}

fn by_chat(messages: Vec<(&str, String)>) -> v1::GenerateRequest {
    let message = |(role, content): (&str, String)| v1::ChatMessage {
        role: role.into(),
        content,
    };
    let messages = messages.into_iter().map(message).collect();
    v1::GenerateRequest {
        input: Some(Input::Chat(v1::ChatInput { messages })),
        ..by_ids(vec![1], 3)
    }
}

/// The request is refused with this code and a message that names the field; then a good one works.
async fn refuses(harness: &Harness, request: v1::GenerateRequest, code: Code, named: &str) {
    let status = status_of(harness.generate(request).await);
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(named), "{named}: {status}");
    harness
        .generate(by_ids(vec![20, 21], 2))
        .await
        .unwrap()
        .whole();
}

type Change = fn(&mut v1::SamplingOptions);

#[tokio::test]
async fn smp_03_smp_05_smp_06_parameters_are_checked_by_name() {
    let (harness, prefill, _decode) = Harness::pair(endless()).await;
    let cases: [(Change, &str); 22] = [
        (|s| s.logprobs = Some(1_000_000), "logprobs"),
        (|s| s.logprobs = Some(21), "logprobs"),
        (|s| s.temperature = Some(f32::NAN), "temperature"),
        (|s| s.temperature = Some(f32::INFINITY), "temperature"),
        (|s| s.temperature = Some(-0.5), "temperature"),
        (|s| s.top_p = Some(0.0), "top_p"),
        (|s| s.top_p = Some(1.000_001), "top_p"),
        (|s| s.min_p = Some(-0.1), "min_p"),
        (|s| s.n = Some(0), "n is 0"),
        (|s| s.n = Some(17), "n is 17"),
        (|s| s.max_tokens = Some(0), "max_tokens"),
        (|s| s.max_tokens = Some(u32::MAX), "max_tokens"),
        (|s| s.min_tokens = 100, "min_tokens"),
        (|s| s.presence_penalty = 99.0, "presence_penalty"),
        (|s| s.frequency_penalty = f32::NAN, "frequency_penalty"),
        (|s| s.repetition_penalty = Some(0.0), "repetition_penalty"),
        (|s| s.logit_bias = [(191_222, -100.0)].into(), "logit_bias"),
        (|s| s.logit_bias = [(5, 1000.0)].into(), "logit_bias"),
        (
            |s| s.logit_bias = (0..301).map(|id| (id, -100.0)).collect(),
            "logit_bias",
        ),
        (|s| s.stop_token_ids = vec![49_153], "stop_token_ids"),
        (|s| s.stop = vec!["a".into(); 5], "stop"),
        (|s| s.stop = vec![String::new()], "stop"),
    ];
    for (change, named) in cases {
        refuses(
            &harness,
            with(long(4), change),
            Code::InvalidArgument,
            named,
        )
        .await;
    }
    assert_eq!(prefill.started(), 0);
}

#[tokio::test]
async fn smp_11_empty_prompts_are_refused() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    for request in [
        by_text(""),
        by_ids(vec![], 3),
        by_chat(vec![]),
        v1::GenerateRequest {
            input: None,
            ..by_text("x")
        },
    ] {
        refuses(&harness, request, Code::InvalidArgument, "").await;
    }
    // White space is text.
    harness.generate(by_text(" \n ")).await.unwrap().whole();
}

#[tokio::test]
async fn smp_13_too_long_prompts_are_refused_at_once() {
    let (harness, prefill, _decode) = Harness::pair(endless()).await;
    let context = MODEL.file.config().context_length as usize;
    let long_ones: Vec<_> = [context, context + 500]
        .map(|tokens| {
            let mut client = harness.client();
            tokio::spawn(async move { Answer::of(&mut client, by_ids(vec![30; tokens], 3)).await })
        })
        .into();
    for _ in 0..3 {
        harness
            .generate(by_ids(vec![20, 21], 2))
            .await
            .unwrap()
            .whole();
    }
    for call in long_ones {
        let status = status_of(call.await.unwrap());
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(
            status.message().contains(&(context - 1).to_string()),
            "{status}"
        );
    }
    assert_eq!(prefill.started(), 0);
    // The longest that fits yields one token.
    let answer = harness
        .generate(by_ids(vec![30; context - 1], 50))
        .await
        .unwrap()
        .whole();
    assert_eq!(answer.only().ids.len(), 1);
    harness.until_idle().await;
}

#[tokio::test]
async fn smp_14_one_token_is_one_token() {
    let (harness, _prefill, decode) = Harness::pair(endless()).await;
    let none = with(long(1), |sampling| sampling.max_tokens = Some(0));
    refuses(&harness, none, Code::InvalidArgument, "max_tokens is 0").await;
    let legs = decode.started();
    let answer = harness.generate(long(1)).await.unwrap().whole();
    assert_eq!(answer.only().ids.len(), 1);
    assert_eq!(decode.started(), legs, "no decode worker was asked");
}

#[tokio::test]
async fn absent_max_tokens_is_what_fits() {
    let harness = Harness::start(config()).await;
    let small = Setup {
        pages: 10,
        ..Setup::decode("decode-0", endless())
    };
    let _decode = harness.add(small).await;
    let open = || {
        with(by_ids(prompt_of(20), 1), |sampling| {
            sampling.max_tokens = None;
        })
    };
    // Ten pages of 16 hold 160 tokens and one more is never stored.
    let answer = harness.generate(open()).await.unwrap().whole();
    assert_eq!(answer.only().ids.len(), 160 - 20 + 1);
    // What can never fit is refused for good.
    refuses(
        &harness,
        by_ids(prompt_of(20), 500),
        Code::InvalidArgument,
        "10",
    )
    .await;
    let seeded = harness.generate(open()).await.unwrap().whole();
    assert_ne!(
        seeded.receipt().seed,
        answer.receipt().seed,
        "drawn for each request"
    );
}

#[tokio::test]
async fn sec_03_labels_never_serve_as_ids() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let labelled = |label: &str| {
        let request = v1::GenerateRequest {
            request_label: label.into(),
            ..long(3)
        };
        let mut client = harness.client();
        async move { Answer::of(&mut client, request).await.unwrap().whole() }
    };
    let (a, b) = tokio::join!(labelled("same"), labelled("same"));
    assert_eq!(
        (
            a.receipt().request_label.as_str(),
            b.receipt().request_label.as_str()
        ),
        ("same", "same")
    );
    assert_ne!(a.receipt().request_id, b.receipt().request_id);
    for bad in ["a\r\nb", "a\0b", "naïve", &"x".repeat(1 << 20), "a b"] {
        let answer = labelled(bad).await;
        assert_eq!(answer.receipt().request_label, answer.receipt().request_id);
    }
    assert_eq!(labelled("").await.receipt().request_label, "");
}

#[tokio::test]
async fn sec_05_what_is_asked_for_is_bounded() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let code = Code::InvalidArgument;
    refuses(
        &harness,
        with(long(1), |s| s.n = Some(1_000_000_000)),
        code,
        "n is",
    )
    .await;
    refuses(
        &harness,
        with(long(1), |s| s.max_tokens = Some(1 << 31)),
        code,
        "max_tokens",
    )
    .await;
    refuses(
        &harness,
        with(long(1), |s| s.stop = vec!["x".into(); 100_000]),
        code,
        "stop",
    )
    .await;
    refuses(&harness, by_text("x".repeat(2 << 20)), code, "bytes").await;
    let messages = vec![("user", "x".to_owned()); 100_000];
    refuses(&harness, by_chat(messages), code, "messages").await;
    refuses(&harness, by_chat(vec![("root", "x".into())]), code, "role").await;
    let salted = v1::GenerateRequest {
        cache_salt: "s".repeat(257),
        ..long(3)
    };
    refuses(&harness, salted, code, "cache_salt").await;
}

#[tokio::test]
async fn sec_05_places_are_bounded_and_refusals_say_when_to_come_back() {
    let config = RouterConfig {
        max_running: 1,
        max_waiting: 1,
        admission_wait: Duration::from_secs(5),
        ..config()
    };
    let harness = Harness::start(config).await;
    let _decode = harness.add(Setup::decode("decode-0", endless())).await;
    let mut running = harness
        .client()
        .generate(by_ids(prompt_of(5), 2000))
        .await
        .unwrap();
    first_token(running.get_mut()).await;
    let mut client = harness.client();
    let waiting = tokio::spawn(async move { Answer::of(&mut client, by_ids(vec![20], 2)).await });
    soon("one waits", async {
        while harness.list().await.router.unwrap().requests_waiting != 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    let status = status_of(harness.generate(by_ids(vec![20], 2)).await);
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(retry_after(&status).is_some());
    drop(running);
    waiting.await.unwrap().unwrap().whole();
}

#[tokio::test]
async fn sec_07_model_names_are_looked_up() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let named = |model: &str| v1::GenerateRequest {
        model: model.into(),
        ..long(3)
    };
    harness
        .generate(named(MODEL.served.name()))
        .await
        .unwrap()
        .whole();
    let names = [
        "../../etc/passwd",
        "a/../../b",
        "/etc/passwd",
        "a\0",
        "%2e%2e/",
        &"x".repeat(1 << 16),
    ];
    for name in names {
        let status = status_of(harness.generate(named(name)).await);
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().len() < 1000);
        let tokenize = v1::TokenizeRequest {
            model: name.into(),
            ..Default::default()
        };
        assert_eq!(
            harness
                .client()
                .tokenize(tokenize)
                .await
                .unwrap_err()
                .code(),
            Code::NotFound
        );
    }
}

#[tokio::test]
async fn token_ids_are_checked_against_the_vocabulary() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let vocabulary = MODEL.file.config().vocabulary;
    for id in [vocabulary, u32::MAX] {
        refuses(
            &harness,
            by_ids(vec![5, id], 3),
            Code::InvalidArgument,
            "vocabulary",
        )
        .await;
    }
    // Control tokens are allowed as ids.
    harness
        .generate(by_ids(vec![0, 1, 2], 3))
        .await
        .unwrap()
        .whole();
}

#[tokio::test]
async fn smp_07_temperatures_have_a_range() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let asks = |temperature| {
        with(by_ids(vec![20, 21], 2), |sampling| {
            sampling.temperature = Some(temperature);
        })
    };
    // Tiny ones are greedy, but they are taken.
    for temperature in [0.0, 1e-45, 1e-8, 1e-5, 1e-4, 0.001, 2.0, 10.0] {
        harness.generate(asks(temperature)).await.unwrap().whole();
    }
    for temperature in [10.000_001, 1e6, f32::MAX, -1e-45] {
        refuses(
            &harness,
            asks(temperature),
            Code::InvalidArgument,
            "allowed: 0 to 10",
        )
        .await;
    }
}
