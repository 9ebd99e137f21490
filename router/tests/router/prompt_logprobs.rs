//! Log-probabilities of prompts: each once, in order, before any token, on every way and after every
//! failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_cluster::Membership;
use baton_proto::domain::PromptLogprobs;
use baton_proto::legs::{DecodeEvent, PrefillEvent};
use baton_proto::v1;
use baton_router::RouterConfig;
use tonic::{Code, Status};

use crate::fake::{PrefillFake, Setup, endless, prompt_logprobs, token};
use crate::harness::{
    Answer, Harness, MODEL, ROOMY_MODEL, by_ids, config, long, prompt_of, soon, with,
};

fn asking(request: v1::GenerateRequest, count: u32) -> v1::GenerateRequest {
    with(request, |sampling| sampling.prompt_logprobs = Some(count))
}

/// Everything has come that was asked for, of a prompt of this many tokens.
fn is_whole(answer: Answer, prompt: usize, count: usize) -> Answer {
    let answer = answer.whole();
    assert_eq!(answer.prompt_ids, prompt_of(prompt)[1..]);
    are_whole(answer, count)
}

fn are_whole(answer: Answer, count: usize) -> Answer {
    for (position, entry) in (1..).zip(&answer.prompt_logprobs) {
        assert!((entry.chosen + 0.001 * position as f32).abs() < 1e-6);
        assert_eq!(entry.top.len(), count);
    }
    answer
}

fn reason(answer: &Answer) -> &str {
    &answer.receipt().attempts.last().unwrap().reason
}

#[tokio::test]
async fn they_come_before_the_first_token_on_every_way() {
    let (harness, prefill, decode) = Harness::pair(endless()).await;
    for (request, length, way) in [
        (long(12), 100, "split: least loaded"),
        (long(1), 100, "prefill only: one token"),
        (
            by_ids(prompt_of(40), 6),
            40,
            "local: short prompt (40 <= 64)",
        ),
        (by_ids(prompt_of(1), 2), 1, "local: short prompt (1 <= 64)"),
        (
            with(long(3), |sampling| sampling.n = Some(4)),
            100,
            "split: least loaded",
        ),
    ] {
        for count in [0, 3, 20] {
            let answer = harness.generate(asking(request.clone(), count)).await;
            let answer = is_whole(answer.unwrap(), length, count as usize);
            assert_eq!(reason(&answer), way);
            for alternative in answer.prompt_logprobs.iter().flat_map(|entry| &entry.top) {
                let bytes = MODEL.text.token_bytes(alternative.token_id).unwrap();
                assert_eq!(alternative.text_bytes, bytes);
                assert_eq!(alternative.text, String::from_utf8_lossy(&bytes));
            }
        }
        let plain = harness.generate(request).await.unwrap().whole();
        assert!(plain.prompt_ids.is_empty());
    }
    prefill.until_idle().await;
    decode.until_idle().await;
    assert_eq!(harness.counter("retries").await, 0);
}

#[tokio::test]
async fn too_many_alternatives_are_refused_by_name() {
    let (harness, prefill, _decode) = Harness::pair(endless()).await;
    let status = harness.generate(asking(long(3), 21)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert_eq!(status.message(), "prompt_logprobs is 21, allowed: 0 to 20");
    assert_eq!(prefill.started(), 0);
}

/// Held pages are no reason to go anywhere: the prompt is computed from its start.
#[tokio::test]
async fn who_holds_the_prompt_does_not_matter() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let request = by_ids(prompt_of(100), 4);
    harness.generate(request.clone()).await.unwrap().whole();
    let plain = harness.generate(request.clone()).await.unwrap().whole();
    assert!(reason(&plain).contains("holds"), "{}", reason(&plain));
    let answer = harness.generate(asking(request, 2)).await.unwrap();
    assert_eq!(reason(&is_whole(answer, 100, 2)), "split: least loaded");
}

/// What a prefill worker that breaks has told so far; then another one starts over.
async fn broken_after(told: usize) -> (Answer, Option<u32>) {
    let harness = Harness::start(config()).await;
    let was_broken = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(Mutex::new(None));
    let script = |was_broken: Arc<AtomicBool>, asked: Arc<Mutex<Option<u32>>>| {
        move |leg: PrefillFake| {
            let (was_broken, asked) = (was_broken.clone(), asked.clone());
            async move {
                if was_broken.swap(true, Ordering::SeqCst) {
                    *asked.lock().unwrap() = leg.spec.params.prompt_logprobs;
                    return leg.behave(endless()).await;
                }
                leg.scheduled().await;
                for some in prompt_logprobs(&leg.spec, 1).into_iter().take(told) {
                    leg.send(PrefillEvent::PromptLogprobs(some)).await;
                }
                Err(Status::internal("by script"))
            }
        }
    };
    let mut workers = Vec::new();
    for name in ["prefill-0", "prefill-1"] {
        let script = script(was_broken.clone(), asked.clone());
        workers.push(
            harness
                .add(Setup::prefill(name, endless()).plays(script))
                .await,
        );
    }
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    let answer = harness.generate(asking(long(6), 2)).await.unwrap();
    let answer = is_whole(answer, 100, 2);
    assert_eq!(answer.receipt().attempts.len(), 2);
    decode.until_idle().await;
    let asked = *asked.lock().unwrap();
    (answer, asked)
}

#[tokio::test]
async fn another_prefill_worker_repeats_nothing() {
    for told in [0, 1, 2] {
        assert_eq!(broken_after(told).await.1, Some(2));
    }
    // All had been told: nobody is asked again.
    assert_eq!(broken_after(3).await.1, None);
}

/// The decode worker's words overtake those of prefill.
#[tokio::test]
async fn a_landing_waits_for_the_prompt() {
    let harness = Harness::start(config()).await;
    let (decoded, wait) = tokio::sync::watch::channel(false);
    let prefill = Setup::prefill("prefill-0", endless()).plays(move |mut leg| {
        let mut wait = wait.clone();
        async move {
            leg.scheduled().await;
            let grant = leg.grant().await;
            let mut parts = prompt_logprobs(&leg.spec, 1).into_iter();
            leg.send(PrefillEvent::PromptLogprobs(parts.next().unwrap()))
                .await;
            let tokens = leg.first_tokens(&endless());
            assert!(leg.commit(&grant, &tokens));
            wait.wait_for(|decoded| *decoded).await.unwrap();
            for part in parts {
                leg.send(PrefillEvent::PromptLogprobs(part)).await;
            }
            for token in tokens {
                leg.send(PrefillEvent::FirstToken(token)).await;
            }
            leg.send(PrefillFake::report(true)).await;
            Ok(())
        }
    });
    let prefill = harness.add(prefill).await;
    let decoded = Arc::new(decoded);
    let decode = Setup::decode("decode-0", endless()).plays_decode(move |leg| {
        let decoded = decoded.clone();
        async move {
            let first = leg.grants().await.await.unwrap();
            leg.landed(first).await;
            for position in 1..8 {
                let token = token(&endless(), &leg.spec, 0, position);
                leg.send(DecodeEvent::Token(token)).await;
            }
            leg.done().await;
            decoded.send_replace(true);
            Ok(())
        }
    });
    let decode = harness.add(decode).await;
    let answer = harness.generate(asking(long(8), 2)).await.unwrap();
    let answer = is_whole(answer, 100, 2);
    assert_eq!(answer.only().ids.len(), 8);
    assert_eq!(answer.receipt().attempts.len(), 1);
    prefill.until_idle().await;
    decode.until_idle().await;
}

/// What no worker may do, and the words that say so.
type Wrong = (&'static str, fn(Vec<PromptLogprobs>) -> Vec<PromptLogprobs>);

#[tokio::test]
async fn a_worker_that_tells_nonsense_is_replaced() {
    let wrongs: [Wrong; 6] = [
        (
            "prompt tokens 38 to 75 of 100 instead of 1 on",
            |mut told| {
                told.remove(0);
                told
            },
        ),
        ("prompt tokens 75 to 101 of 100 instead", |mut told| {
            let last = told.last_mut().unwrap();
            last.entries.push(last.entries[0].clone());
            told
        }),
        (
            "3 alternatives of a prompt token, 2 asked for",
            |mut told| {
                told[1].entries[4].top.push((3, -9.0));
                told
            },
        ),
        ("token id 4000000000 of", |mut told| {
            told[2].entries[0].top[1].0 = 4_000_000_000;
            told
        }),
        (
            "a token before the prompt's log-probabilities",
            |mut told| {
                told.pop();
                told
            },
        ),
        ("a token before the prompt's log-probabilities", |_| {
            Vec::new()
        }),
    ];
    for (expected, spoil) in wrongs {
        let harness = Harness::start(config()).await;
        let bad = Setup::decode("decode-0", endless()).plays_decode(move |leg| async move {
            for some in spoil(prompt_logprobs(&leg.spec, 1)) {
                leg.send(DecodeEvent::PromptLogprobs(some)).await;
            }
            let token = token(&endless(), &leg.spec, 0, 0);
            leg.send(DecodeEvent::Token(token)).await;
            std::future::pending().await
        });
        let bad = harness.add(bad).await;
        let request = asking(by_ids(prompt_of(100), 4), 2);
        let mut client = harness.client();
        let answer = tokio::spawn(async move { Answer::of(&mut client, request).await });
        bad.until_started(1).await;
        let good = harness.add(Setup::decode("decode-1", endless())).await;
        let answer = is_whole(answer.await.unwrap().unwrap(), 100, 2);
        let failure = &answer.receipt().attempts[0].failure;
        assert!(failure.contains(expected), "{failure:?} says {expected:?}");
        good.until_idle().await;
        bad.until_idle().await;
    }
}

#[tokio::test]
async fn prefill_that_ends_before_it_has_told_everything_is_replaced() {
    let harness = Harness::start(config()).await;
    let bad = Setup::prefill("prefill-0", endless()).plays(|mut leg| async move {
        if leg.number > 1 {
            return leg.behave(endless()).await;
        }
        leg.scheduled().await;
        let grant = leg.grant().await;
        assert!(leg.commit(&grant, &leg.first_tokens(&endless())));
        leg.send(PrefillFake::report(true)).await;
        Ok(())
    });
    let prefill = harness.add(bad).await;
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    let answer = harness.generate(asking(long(6), 1)).await.unwrap();
    let answer = is_whole(answer, 100, 1);
    let failure = &answer.receipt().attempts[0].failure;
    assert!(
        failure.contains("it told too little of the prompt"),
        "{failure}"
    );
    decode.until_idle().await;
    prefill.until_idle().await;
}

#[tokio::test]
async fn a_model_that_fails_at_a_prompt_fails_once() {
    let failing = || Status::data_loss("logits after prompt token 3 are not finite");
    for role in ["prefill", "decode"] {
        let harness = Harness::start(config()).await;
        let prefill = Setup::prefill("prefill-0", endless());
        let decode = Setup::decode("decode-0", endless());
        let (prefill, decode) = match role {
            "prefill" => (
                prefill.plays(move |_| async move { Err(failing()) }),
                decode,
            ),
            _ => (
                prefill,
                decode.plays_decode(move |_| async move { Err(failing()) }),
            ),
        };
        let prefill = harness.add(prefill).await;
        let decode = harness.add(decode).await;
        let request = match role {
            "prefill" => asking(long(6), 1),
            _ => asking(by_ids(prompt_of(20), 6), 1),
        };
        let answer = harness.generate(request).await.unwrap();
        assert_eq!(prefill.started() + decode.started(), 1);
        let status = answer.status();
        assert_eq!(status.code(), Code::Internal, "{status}");
        assert!(status.message().contains("prompt token 3"), "{status}");
        // It says nothing about the worker.
        assert_eq!(harness.counter("worker_failures").await, 0);
        harness.until_idle().await;
    }
}

/// More than the router keeps for a client waits at the worker.
#[tokio::test]
async fn a_client_that_is_behind_holds_prefill_back() {
    let config = RouterConfig {
        client_buffer: 2,
        write_deadline: Duration::from_mins(2),
        ..config()
    };
    let harness = Harness::serving(&ROOMY_MODEL, config, Membership::embedded).await;
    let roomy = |mut setup: Setup| {
        setup.fingerprint.metadata_digest = ROOMY_MODEL.file.metadata_digest();
        setup.fingerprint.tokenizer_digest = ROOMY_MODEL.text.digest();
        setup.context = ROOMY_MODEL.file.config().context_length;
        setup.pages = 5000;
        setup
    };
    let prefill = harness
        .add(roomy(Setup::prefill("prefill-0", endless())))
        .await;
    let decode = harness
        .add(roomy(Setup::decode("decode-0", endless())))
        .await;
    let prompt: Vec<u32> = (0..20_000).map(|at| 10 + at % 200).collect();
    let request = asking(by_ids(prompt.clone(), 3), 20);
    let mut slow = harness
        .client()
        .generate(request)
        .await
        .unwrap()
        .into_inner();
    let started = std::time::Instant::now();
    let mut answer = Answer::default();
    let first = soon("an event", slow.message()).await.unwrap().unwrap();
    answer.take(first.event.unwrap(), started);
    // Meanwhile others are served.
    for _ in 0..10 {
        let other = by_ids(prompt_of(5), 50);
        assert_eq!(
            harness
                .generate(other)
                .await
                .unwrap()
                .whole()
                .only()
                .ids
                .len(),
            50
        );
    }
    while let Some(response) = soon("an event", slow.message()).await.unwrap() {
        answer.take(response.event.unwrap(), started);
    }
    assert_eq!(answer.prompt_ids, prompt[1..]);
    are_whole(answer.whole(), 20);
    assert_eq!(harness.counter("slow_readers").await, 0);
    prefill.until_idle().await;
    decode.until_idle().await;
}
