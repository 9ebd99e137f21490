//! The ways a request goes when nothing fails.

use baton_proto::v1;
use baton_proto::v1::FinishReason;

use crate::fake::{Setup, endless, says};
use crate::harness::{Answer, Harness, by_ids, config, ids, long, prompt_of, soon, with};

fn reason(answer: &Answer) -> &str {
    &answer.receipt().attempts.last().unwrap().reason
}

#[tokio::test]
async fn a_long_prompt_is_split() {
    let (harness, prefill, decode) = Harness::pair(endless()).await;
    let answer = harness.generate(long(12)).await.unwrap().whole();
    let expected: Vec<u32> = (0..12).map(|position| endless()(0, position).0).collect();
    assert_eq!(answer.only().ids, expected);
    let finished = answer.only().finished.clone().unwrap();
    assert_eq!(finished.finish_reason(), FinishReason::Length);
    assert_eq!((prefill.started(), decode.started()), (1, 1));
    let usage = answer.usage();
    assert_eq!(
        (
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cached_tokens
        ),
        (100, 12, 16)
    );
    let receipt = answer.receipt();
    assert_eq!(receipt.attempts.len(), 1);
    let attempt = &receipt.attempts[0];
    assert_eq!(attempt.prefill_worker, "prefill-0");
    assert_eq!(attempt.decode_worker, "decode-0");
    assert_eq!((attempt.attempt, attempt.failure.as_str()), (1, ""));
    assert_eq!(
        (receipt.queue_us, receipt.prefill_us, receipt.grant_wait_us),
        (70, 500, 20)
    );
    assert_eq!((receipt.transfer_us, receipt.transfer_bytes), (30, 1000));
    assert!((receipt.transfer_overlap - 0.9).abs() < 1e-6);
    assert_eq!(
        (receipt.transport.as_str(), receipt.landing_us),
        ("tcp", 40)
    );
    assert_eq!(
        (receipt.cached_tokens, receipt.decode_cached_tokens),
        (16, 16)
    );
    assert!(receipt.admission_us <= receipt.ttft_us && receipt.ttft_us <= receipt.end_to_end_us);
    let mean = (receipt.end_to_end_us - receipt.ttft_us) / 11;
    assert!(receipt.itl_mean_us.abs_diff(mean) <= 1 && receipt.itl_max_us > 0);
    prefill.until_idle().await;
    decode.until_idle().await;
    harness.until_idle().await;
    assert_eq!((prefill.cancelled(), decode.cancelled()), (0, 0));
    harness.until_counter("requests_ok", 1).await;
}

#[tokio::test]
async fn a_short_prompt_is_prefilled_where_it_decodes() {
    let (harness, prefill, decode) = Harness::pair(endless()).await;
    let answer = harness
        .generate(by_ids(prompt_of(12), 5))
        .await
        .unwrap()
        .whole();
    assert_eq!(answer.only().ids.len(), 5);
    assert_eq!(reason(&answer), "local: short prompt (12 <= 64)");
    let receipt = answer.receipt();
    assert_eq!(
        (receipt.queue_us, receipt.prefill_us, receipt.transfer_bytes),
        (60, 300, 0)
    );
    assert_eq!(receipt.attempts[0].prefill_worker, "");
    assert_eq!((prefill.started(), decode.started()), (0, 1));
}

#[tokio::test]
async fn without_a_prefill_worker_the_decode_worker_prefills() {
    let harness = Harness::start(config()).await;
    let _decode = harness.add(Setup::decode("decode-0", endless())).await;
    let answer = harness.generate(long(5)).await.unwrap().whole();
    assert_eq!(reason(&answer), "local: no prefill worker is usable");
    assert_eq!(answer.only().ids.len(), 5);
}

#[tokio::test]
async fn xfr_18_one_token_opens_no_decode_leg() {
    let (harness, prefill, decode) = Harness::pair(endless()).await;
    for request in [long(1), with(long(1), |sampling| sampling.n = Some(2))] {
        let answer = harness.generate(request).await.unwrap().whole();
        for (at, choice) in (0..).zip(&answer.choices) {
            assert_eq!(choice.ids, [endless()(at, 0).0]);
            let finished = choice.finished.as_ref().unwrap();
            assert_eq!(finished.finish_reason(), FinishReason::Length);
        }
        assert_eq!(
            answer.usage().completion_tokens as usize,
            answer.choices.len()
        );
        assert_eq!(reason(&answer), "prefill only: one token");
    }
    assert_eq!((prefill.started(), decode.started()), (2, 0));
}

#[tokio::test]
async fn xfr_18_split_and_local_count_alike() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let local = Harness::start(config()).await;
    let _worker = local.add(Setup::decode("decode-0", endless())).await;
    for max_tokens in [1, 2, 17] {
        let ask = || {
            with(long(max_tokens), |sampling| {
                sampling.n = Some(2);
                sampling.logprobs = Some(3);
            })
        };
        let split = harness.generate(ask()).await.unwrap().whole();
        let unified = local.generate(ask()).await.unwrap().whole();
        assert_eq!(split.usage().completion_tokens, 2 * max_tokens);
        assert_eq!(unified.usage().completion_tokens, 2 * max_tokens);
        for (a, b) in split.choices.iter().zip(&unified.choices) {
            assert_eq!(
                (&a.ids, a.text(), &a.logprobs),
                (&b.ids, b.text(), &b.logprobs)
            );
            assert_eq!(a.logprobs.len(), max_tokens as usize);
        }
    }
}

#[tokio::test]
async fn smp_02_choices_end_on_their_own() {
    let script: crate::fake::Script = std::sync::Arc::new(|choice, position| {
        if choice == 0 && position == 2 {
            (2, Some(baton_proto::domain::FinishReason::Stop))
        } else {
            endless()(choice, position)
        }
    });
    let (harness, _prefill, _decode) = Harness::pair(script).await;
    let request = || with(long(24), |sampling| sampling.n = Some(4));
    let answer = harness.generate(request()).await.unwrap().whole();
    let lengths: Vec<usize> = answer
        .choices
        .iter()
        .map(|choice| choice.ids.len())
        .collect();
    assert_eq!(lengths, [3, 24, 24, 24]);
    let reasons: Vec<_> = answer
        .choices
        .iter()
        .map(|choice| choice.finished.as_ref().unwrap().finish_reason())
        .collect();
    let length = FinishReason::Length;
    assert_eq!(reasons, [FinishReason::Stop, length, length, length]);
    assert_eq!(answer.usage().completion_tokens, 75);
    let again = harness.generate(request()).await.unwrap().whole();
    for (a, b) in answer.choices.iter().zip(&again.choices) {
        assert_eq!(a.ids, b.ids);
    }
}

#[tokio::test]
async fn the_next_turn_of_a_chat_goes_where_its_pages_are() {
    let harness = Harness::start(config()).await;
    let _prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
    let mut decodes = Vec::new();
    for name in ["decode-0", "decode-1", "decode-2"] {
        decodes.push(harness.add(Setup::decode(name, endless())).await);
    }
    let first = harness
        .generate(by_ids(prompt_of(100), 30))
        .await
        .unwrap()
        .whole();
    let holder = first.receipt().attempts[0].decode_worker.clone();
    assert!(reason(&first).starts_with("split"));
    let mut next = prompt_of(100);
    next.extend(&first.only().ids);
    next.extend(ids("and"));
    let held = (100 + 29) / 16 * 16;
    let second = harness
        .generate(by_ids(next.clone(), 5))
        .await
        .unwrap()
        .whole();
    let expected = format!(
        "local: {holder} holds {held} of {} prompt tokens",
        next.len()
    );
    assert_eq!(reason(&second), expected);
    assert_eq!(second.receipt().attempts[0].decode_worker, holder);
    // Another salt shares nothing.
    let salted = v1::GenerateRequest {
        cache_salt: "other".into(),
        ..by_ids(next, 5)
    };
    let third = harness.generate(salted).await.unwrap().whole();
    assert!(reason(&third).starts_with("split"), "{}", reason(&third));
}

#[tokio::test]
async fn text_chat_and_ids_are_taken() {
    let (harness, _prefill, _decode) = Harness::pair(says(&ids("hello there"))).await;
    let prompt = v1::generate_request::Input::Prompt("say something".into());
    let chat = v1::generate_request::Input::Chat(v1::ChatInput {
        messages: vec![v1::ChatMessage {
            role: "user".into(),
            content: "hi".into(),
        }],
    });
    for input in [prompt, chat] {
        let request = v1::GenerateRequest {
            input: Some(input),
            ..Default::default()
        };
        let answer = harness.generate(request).await.unwrap().whole();
        assert_eq!(answer.only().text(), "hello there");
        let finished = answer.only().finished.clone().unwrap();
        assert_eq!(finished.finish_reason(), FinishReason::Stop);
        // The id that ended it counts and has no text.
        assert_eq!(answer.only().ids.len(), ids("hello there").len() + 1);
    }
    let tokenized = harness
        .client()
        .tokenize(v1::TokenizeRequest {
            input: Some(v1::tokenize_request::Input::Prompt("a b".into())),
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    let text = harness
        .client()
        .detokenize(v1::DetokenizeRequest {
            token_ids: tokenized.token_ids,
            skip_special: true,
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner()
        .text;
    assert_eq!(text, "a b");
}

#[tokio::test]
async fn str_06_usage_comes_once_and_last_and_counts_what_was_sent() {
    let script = says(&ids("one two three four five"));
    let (harness, _prefill, _decode) = Harness::pair(script).await;
    let wants = |n: u32, stop: &str| {
        let stop: Vec<String> = (!stop.is_empty())
            .then(|| stop.to_owned())
            .into_iter()
            .collect();
        move |sampling: &mut v1::SamplingOptions| {
            sampling.n = Some(n);
            sampling.stop = stop;
        }
    };
    let requests = [
        with(long(4), wants(3, "")),
        with(long(1), wants(2, "")),
        with(long(100), wants(1, "")),
        with(long(100), wants(2, "three")),
        with(long(100), wants(2, "o")),
        with(by_ids(prompt_of(7), 5), wants(2, "")),
        with(by_ids(prompt_of(7), 100), wants(2, "three")),
    ];
    for request in requests {
        let (prompt, n) = match (&request.input, &request.sampling) {
            (Some(v1::generate_request::Input::Tokens(tokens)), Some(sampling)) => {
                (tokens.token_ids.len() as u32, sampling.n())
            }
            other => panic!("{other:?}"),
        };
        let mut stream = harness
            .client()
            .generate(request)
            .await
            .unwrap()
            .into_inner();
        let (mut tokens, mut finished, mut in_choices) = (0, 0, 0);
        let usage = loop {
            let response = soon("an event", stream.message()).await.unwrap();
            match response.expect("Done comes last").event.unwrap() {
                v1::generate_response::Event::Token(token) => {
                    tokens += token.token_ids.len() as u32;
                }
                v1::generate_response::Event::Prompt(_) => panic!("nobody asked"),
                v1::generate_response::Event::Finished(event) => {
                    finished += 1;
                    in_choices += event.completion_tokens;
                }
                v1::generate_response::Event::Done(done) => break done.usage.unwrap(),
            }
        };
        assert_eq!(finished, n, "after the end of every choice");
        assert_eq!(usage.completion_tokens, tokens);
        assert_eq!(usage.completion_tokens, in_choices);
        assert_eq!(usage.prompt_tokens, prompt);
        assert!(usage.cached_tokens < prompt);
        assert!(soon("the end", stream.message()).await.unwrap().is_none());
    }
}
