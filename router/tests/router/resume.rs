//! Streams that go on at another worker: what the client sees is what it would have seen anyway, and the
//! worker is asked for the rest only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use baton_proto::domain::{Fingerprint, FinishReason, SequenceSpec};
use baton_proto::legs::{DecodeEvent, PrefillEvent, PrefillReport};
use baton_router::RouterConfig;
use tonic::{Code, Status};

use crate::failures::{End, decode_that, expected, is_exact, make_second_choice, until_reported};
use crate::fake::{FakeWorker, Script, Setup, endless, fingerprint, open_choices, says, token};
use crate::harness::{
    Answer, Harness, by_ids, config, first_token, ids, long, prompt_of, soon, with,
};

/// Specs of the legs that a worker was asked for.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<SequenceSpec>>>);

impl Asked {
    fn note(&self, spec: &SequenceSpec) {
        self.0.lock().unwrap().push(spec.clone());
    }

    fn only(&self) -> SequenceSpec {
        let asked = self.0.lock().unwrap();
        assert_eq!(asked.len(), 1);
        asked[0].clone()
    }
}

/// A decode worker that behaves and remembers what it was asked for.
fn noting(name: &str, script: Script, asked: &Asked) -> Setup {
    let asked = asked.clone();
    Setup::decode(name, Arc::clone(&script)).plays_decode(move |leg| {
        asked.note(&leg.spec);
        leg.behave(Arc::clone(&script))
    })
}

/// A decode worker that goes away after so many tokens of each request, and resumes well.
fn breaking_after(tokens: u32, script: Script) -> Setup {
    Setup::decode("decode-0", Arc::clone(&script)).plays_decode(move |leg| {
        let script = Arc::clone(&script);
        async move {
            if !leg.spec.completions.is_empty() {
                return leg.behave(script).await;
            }
            for position in 0..tokens {
                leg.send(DecodeEvent::Token(token(&script, &leg.spec, 0, position)))
                    .await;
            }
            Err(Status::unavailable("by script"))
        }
    })
}

#[tokio::test]
async fn k8s_01_what_has_begun_goes_on_with_the_same_model_only() {
    let other_weights = Fingerprint {
        weights_digest: [9; 32],
        ..fingerprint()
    };
    let other_pages = Fingerprint {
        page_size: 32,
        ..fingerprint()
    };
    for (fingerprint, same_answers) in [(other_weights, false), (other_pages, true)] {
        let brief = RouterConfig {
            grant_wait: Duration::from_millis(300),
            ..config()
        };
        let harness = Harness::start(brief).await;
        let spare = Setup {
            fingerprint,
            ..Setup::decode("decode-1", endless())
        };
        let spare = harness.add(spare).await;
        make_second_choice(&spare);
        until_reported(&harness, "decode-1").await;
        let _lost = harness.add(breaking_after(5, endless())).await;
        // Once it has broken off, it resumes well: the only one that may where weights differ.
        let answer = harness.generate(by_ids(prompt_of(5), 50)).await.unwrap();
        if same_answers {
            is_exact(answer, 50);
            assert_eq!(spare.started(), 1);
        } else {
            let attempts = is_exact(answer, 50).receipt().attempts.clone();
            assert_eq!(spare.started(), 0, "{attempts:?}");
            assert!(
                attempts[1..]
                    .iter()
                    .all(|one| one.decode_worker == "decode-0"),
                "{attempts:?}"
            );
        }
    }
}

#[tokio::test]
async fn rte_07_a_lost_decode_worker_is_replaced_mid_stream() {
    let ends: [End; 4] = [
        |_| Ok(()),
        |_| Err(Status::aborted("cancelled by an operator")),
        |_| Err(Status::internal("a fault")),
        |_| Err(Status::unavailable("drain_limit: shutting down")),
    ];
    for end in ends {
        for request in [long(50), by_ids(prompt_of(5), 50)] {
            let harness = Harness::start(config()).await;
            let prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
            let asked = Asked::default();
            let spare = harness.add(noting("decode-1", endless(), &asked)).await;
            make_second_choice(&spare);
            until_reported(&harness, "decode-1").await;
            let lost = harness.add(decode_that(end)).await;
            let answer = is_exact(harness.generate(request.clone()).await.unwrap(), 50);
            assert_eq!(answer.usage().completion_tokens, 50, "each counts once");
            let attempts = &answer.receipt().attempts;
            assert_eq!(attempts.len(), 2, "{attempts:?}");
            assert!(
                attempts[0].failure.starts_with("decode-0: "),
                "{attempts:?}"
            );
            assert_eq!(attempts[0].kept_tokens, 0);
            assert!(
                attempts[1].reason.starts_with("resume: 5 tokens kept; "),
                "{attempts:?}"
            );
            assert_eq!((attempts[1].kept_tokens, attempts[1].attempt), (5, 2));
            assert_eq!(attempts[1].decode_worker, "decode-1");
            let spec = asked.only();
            let sent = request.input.unwrap();
            let baton_proto::v1::generate_request::Input::Tokens(sent) = sent else {
                panic!("{sent:?}")
            };
            assert_eq!(spec.prompt_ids, sent.token_ids, "kept apart");
            assert_eq!(spec.completions.len(), 1);
            assert_eq!(spec.completions[0].token_ids, expected(5));
            assert!(!spec.completions[0].ended);
            assert_eq!((lost.started(), spare.started()), (1, 1));
            assert_eq!(harness.counter("resumes").await, 1);
            assert_eq!(harness.counter("requests_ok").await, 1);
            assert_eq!(harness.counter("tokens_emitted").await, 50);
            assert_eq!(harness.counter("tokens_contradicted").await, 0);
            prefill.until_idle().await;
            spare.until_idle().await;
            harness.until_idle().await;
        }
    }
}

#[tokio::test]
async fn rte_07_a_worker_that_comes_back_resumes_what_it_dropped() {
    for request in [long(400), by_ids(prompt_of(5), 400)] {
        let harness = Harness::start(RouterConfig {
            grant_wait: Duration::from_secs(10),
            ..config()
        })
        .await;
        let _prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
        let mut lost = harness.add(Setup::decode("decode-0", endless())).await;
        let mut stream = harness
            .client()
            .generate(request)
            .await
            .unwrap()
            .into_inner();
        let mut answer = Answer::default();
        while answer
            .choices
            .first()
            .is_none_or(|choice| choice.ids.len() < 5)
        {
            let event = soon("an event", stream.message()).await.unwrap().unwrap();
            answer.take(event.event.unwrap(), Instant::now());
        }
        lost.kill();
        let _new = harness.add(Setup::decode("decode-0", endless())).await;
        while let Some(event) = soon("an event", stream.message()).await.unwrap() {
            answer.take(event.event.unwrap(), Instant::now());
        }
        let answer = is_exact(answer, 400);
        assert!(
            answer.receipt().attempts.len() >= 2,
            "{:?}",
            answer.receipt()
        );
        harness.until_idle().await;
    }
}

#[tokio::test]
async fn tok_01_characters_and_stop_strings_survive_a_break_anywhere() {
    let cases: [(&str, &[&str]); 4] = [
        ("ok \u{1F642} 日本 é", &[]),
        ("a quick brown fox", &["brown f"]),
        ("a quick brown fox", &["over"]),
        ("in 日本 now", &["日本 n"]),
    ];
    for (text, stop) in cases {
        let script = says(&ids(text));
        let request = || {
            with(by_ids(prompt_of(5), 100), |sampling| {
                sampling.stop = stop.iter().map(|&stop| stop.to_owned()).collect();
            })
        };
        let undisturbed = Harness::start(config()).await;
        let _worker = undisturbed
            .add(Setup::decode("decode-0", Arc::clone(&script)))
            .await;
        let whole = undisturbed.generate(request()).await.unwrap().whole();
        for cut in 1..whole.only().ids.len() as u32 {
            let harness = Harness::start(config()).await;
            let _worker = harness.add(breaking_after(cut, Arc::clone(&script))).await;
            let answer = harness.generate(request()).await.unwrap().whole();
            let what = format!("{text:?} broken after {cut}");
            assert_eq!(answer.only().ids, whole.only().ids, "{what}");
            assert_eq!(answer.only().text(), whole.only().text(), "{what}");
            assert_eq!(answer.only().finished, whole.only().finished, "{what}");
            assert_eq!(answer.receipt().attempts.len(), 2, "{what}");
            assert_eq!(answer.receipt().attempts[1].kept_tokens, u64::from(cut));
        }
    }
}

/// Choice 1 ends after two tokens.
fn uneven() -> Script {
    Arc::new(|choice, position| match (choice, position) {
        (1, 1) => (40, Some(FinishReason::Stop)),
        _ => (10 + (choice * 31 + position * 7) % 200, None),
    })
}

#[tokio::test]
async fn rte_07_each_choice_goes_on_from_where_it_was() {
    for request in [long(20), by_ids(prompt_of(5), 20)] {
        let request = with(request, |sampling| {
            sampling.n = Some(3);
            sampling.logprobs = Some(2);
        });
        let harness = Harness::start(config()).await;
        let _prefill = harness.add(Setup::prefill("prefill-0", uneven())).await;
        let asked = Asked::default();
        let spare = harness.add(noting("decode-1", uneven(), &asked)).await;
        make_second_choice(&spare);
        until_reported(&harness, "decode-1").await;
        let lost = Setup::decode("decode-0", uneven()).plays_decode(|leg| async move {
            if !leg.local_prefill {
                let first = leg.grants().await.await.unwrap();
                leg.landed(first).await;
            }
            for (choice, tokens) in [(0, 4), (1, 2), (2, 1)] {
                for position in 0..tokens {
                    let token = token(&uneven(), &leg.spec, choice, position);
                    leg.send(DecodeEvent::Token(token)).await;
                }
            }
            Err(Status::internal("by script"))
        });
        let _lost = harness.add(lost).await;
        let answer = harness.generate(request).await.unwrap().whole();
        for (at, choice) in (0..).zip(&answer.choices) {
            let tokens = if at == 1 { 2 } else { 20 };
            let expected: Vec<u32> = (0..tokens)
                .map(|position| uneven()(at, position).0)
                .collect();
            assert_eq!(choice.ids, expected, "choice {at}");
            assert_eq!(choice.logprobs.len(), expected.len());
        }
        assert_eq!(answer.usage().completion_tokens, 42);
        let spec = asked.only();
        let ended: Vec<bool> = spec.completions.iter().map(|choice| choice.ended).collect();
        assert_eq!(ended, [false, true, false]);
        assert_eq!(open_choices(&spec), [(0, 4), (2, 1)]);
        assert_eq!(answer.receipt().attempts[1].kept_tokens, 7);
    }
}

#[tokio::test]
async fn rte_07_a_last_token_needs_no_decode_worker() {
    let harness = Harness::start(config()).await;
    let prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
    let mut lost = harness
        .add(
            Setup::decode("decode-0", endless()).plays_decode(|leg| async move {
                for position in 0..5 {
                    leg.send(DecodeEvent::Token(token(
                        &endless(),
                        &leg.spec,
                        0,
                        position,
                    )))
                    .await;
                }
                std::future::pending().await
            }),
        )
        .await;
    let mut stream = harness
        .client()
        .generate(by_ids(prompt_of(5), 6))
        .await
        .unwrap()
        .into_inner();
    for _ in 0..5 {
        first_token(&mut stream).await;
    }
    lost.kill();
    let last = first_token(&mut stream).await;
    assert_eq!(last.token_ids, expected(6)[5..]);
    while let Some(event) = soon("the end", stream.message()).await.unwrap() {
        drop(event);
    }
    assert_eq!(prefill.started(), 1);
    harness.until_counter("requests_ok", 1).await;
}

#[tokio::test]
async fn rte_07_only_failures_without_progress_are_counted() {
    let harness = Harness::start(RouterConfig {
        max_attempts: 3,
        ..config()
    })
    .await;
    let worker = Setup::decode("decode-0", endless()).plays_decode(|leg| async move {
        let (_, begun) = open_choices(&leg.spec)[0];
        for position in begun..begun + 3 {
            leg.send(DecodeEvent::Token(token(
                &endless(),
                &leg.spec,
                0,
                position,
            )))
            .await;
        }
        Err(Status::aborted("by script"))
    });
    let worker = harness.add(worker).await;
    let answer = is_exact(
        harness.generate(by_ids(prompt_of(5), 30)).await.unwrap(),
        30,
    );
    assert_eq!(worker.started(), 10);
    assert_eq!(answer.receipt().attempts.len(), 10);
    assert_eq!(harness.counter("resumes").await, 9);
}

#[tokio::test]
async fn rte_07_attempts_without_progress_are_bounded() {
    let harness = Harness::start(RouterConfig {
        max_attempts: 3,
        grant_wait: Duration::from_secs(10),
        ..config()
    })
    .await;
    let worker = Setup::decode("decode-0", endless()).plays_decode(|leg| async move {
        if leg.spec.completions.is_empty() {
            leg.send(DecodeEvent::Token(token(&endless(), &leg.spec, 0, 0)))
                .await;
        }
        Err(Status::aborted("by script"))
    });
    let worker = harness.add(worker).await;
    let mut answer = harness.generate(by_ids(prompt_of(5), 30)).await.unwrap();
    let status = answer.error.take().unwrap();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status
            .message()
            .contains("decode-0 was lost after 1 tokens")
            && status.message().contains("3 attempts"),
        "{status}"
    );
    // The first failure came with progress and begins the count.
    assert_eq!(worker.started(), 3);
}

#[tokio::test]
async fn the_deadline_is_kept_while_nobody_can_resume() {
    let harness = Harness::start(RouterConfig {
        grant_wait: Duration::from_mins(1),
        ..config()
    })
    .await;
    let mut lost = harness.add(Setup::decode("decode-0", endless())).await;
    let mut call = tonic::Request::new(by_ids(prompt_of(5), 2000));
    call.set_timeout(Duration::from_millis(900));
    let mut stream = harness.client().generate(call).await.unwrap().into_inner();
    first_token(&mut stream).await;
    lost.kill();
    let status = loop {
        match soon("an event", stream.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a silent end"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    harness.until_counter("requests_deadline", 1).await;
}

#[tokio::test]
async fn what_was_said_of_the_prompt_is_not_asked_for_again() {
    let request = with(long(20), |sampling| sampling.prompt_logprobs = Some(1));
    let harness = Harness::start(config()).await;
    let _prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
    let asked = Asked::default();
    let spare: FakeWorker = harness.add(noting("decode-1", endless(), &asked)).await;
    make_second_choice(&spare);
    until_reported(&harness, "decode-1").await;
    let _lost = harness
        .add(decode_that(|_| Err(Status::internal("by script"))))
        .await;
    let answer = is_exact(harness.generate(request).await.unwrap(), 20);
    assert_eq!(answer.prompt_ids.len(), 99);
    assert_eq!(asked.only().params.prompt_logprobs, None);
}

/// Says of its first leg for 1.5 s nothing but that it waits, then goes on or falls silent.
fn hesitant(name: &str, goes_on: bool) -> Setup {
    Setup::decode(name, endless()).plays_decode(move |leg| async move {
        let (_, begun) = open_choices(&leg.spec)[0];
        if begun > 0 {
            return leg.behave(endless()).await;
        }
        for position in 0..3 {
            leg.send(DecodeEvent::Token(token(
                &endless(),
                &leg.spec,
                0,
                position,
            )))
            .await;
        }
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            leg.send(DecodeEvent::Alive).await;
        }
        if !goes_on {
            std::future::pending::<()>().await;
        }
        for position in 3..20 {
            leg.send(DecodeEvent::Token(token(
                &endless(),
                &leg.spec,
                0,
                position,
            )))
            .await;
        }
        leg.done().await;
        Ok(())
    })
}

fn quick_to_despair() -> RouterConfig {
    RouterConfig {
        progress_timeout: Duration::from_secs(1),
        ..config()
    }
}

#[tokio::test]
async fn xfr_15_a_leg_that_waits_and_says_so_is_waited_for() {
    let harness = Harness::start(quick_to_despair()).await;
    let worker = harness.add(hesitant("decode-0", true)).await;
    let answer = is_exact(
        harness.generate(by_ids(prompt_of(5), 20)).await.unwrap(),
        20,
    );
    assert_eq!(answer.receipt().attempts.len(), 1);
    assert_eq!(worker.started(), 1);
    assert_eq!(harness.counter("worker_failures").await, 0);
}

#[tokio::test]
async fn rte_06_a_leg_that_falls_silent_is_resumed_elsewhere() {
    let harness = Harness::start(quick_to_despair()).await;
    let silent = harness.add(hesitant("decode-0", false)).await;
    let spare = harness.add(Setup::decode("decode-1", endless())).await;
    make_second_choice(&spare);
    until_reported(&harness, "decode-1").await;
    let answer = is_exact(
        harness.generate(by_ids(prompt_of(5), 20)).await.unwrap(),
        20,
    );
    let attempts = &answer.receipt().attempts;
    assert!(
        attempts[0].failure.contains("made no progress for 1s"),
        "{attempts:?}"
    );
    assert_eq!((attempts[1].kept_tokens, spare.started()), (3, 1));
    silent.until_idle().await;
}

/// A stopped process still has its connections accepted by its system.
#[tokio::test]
async fn rte_06_a_leg_that_nobody_takes_up_counts_as_silent() {
    let patient = RouterConfig {
        leg_open_timeout: Duration::from_hours(1),
        ..quick_to_despair()
    };
    let harness = Harness::start(patient).await;
    let stopped = harness.add(Setup::decode("decode-0", endless())).await;
    let spare = harness.add(Setup::decode("decode-1", endless())).await;
    make_second_choice(&spare);
    until_reported(&harness, "decode-1").await;
    stopped.hang(true);
    let answered = soon("an answer", harness.generate(by_ids(prompt_of(5), 20)));
    let answer = is_exact(answered.await.unwrap(), 20);
    let attempts = &answer.receipt().attempts;
    let failures: Vec<_> = attempts.iter().map(|one| one.failure.as_str()).collect();
    assert_eq!(
        failures,
        ["decode-0: it did not accept the leg in time", ""]
    );
    assert_eq!(spare.started(), 1);
}

#[tokio::test]
async fn rte_06_who_was_let_down_does_not_wait_for_a_worker_that_says_nothing() {
    let harness = Harness::start(config()).await;
    let quiet = harness.add(Setup::prefill("prefill-0", endless())).await;
    // From now on it says only what nobody can believe.
    quiet.report(|load| load.pages.free = 1_000_000);
    let ages = async || {
        let workers = harness.list().await.workers;
        let age = |worker: baton_proto::v1::WorkerStatus| {
            (worker.info.unwrap().worker_id, worker.load_age_ms)
        };
        workers.into_iter().map(age).collect::<HashMap<_, _>>()
    };
    soon("its last report is old", async {
        while ages().await["prefill-0"] < 1700 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let lost = decode_that(|_| Err(Status::unavailable("by script")));
    let lost = harness.add(lost).await;
    let spare = harness.add(Setup::decode("decode-1", endless())).await;
    make_second_choice(&spare);
    until_reported(&harness, "decode-1").await;
    let answer = is_exact(harness.generate(long(50)).await.unwrap(), 50);
    let attempts = &answer.receipt().attempts;
    let reasons: Vec<_> = attempts.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "split: least loaded",
            "resume: 5 tokens kept; local: no prefill worker is usable"
        ]
    );
    assert_eq!(
        (quiet.started(), lost.started(), spare.started()),
        (1, 1, 1)
    );
}

#[tokio::test]
async fn rte_06_slow_steps_excuse_a_longer_silence() {
    let harness = Harness::start(quick_to_despair()).await;
    let slow = Setup::decode("decode-0", endless()).plays_decode(|leg| async move {
        for position in 0..3 {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            leg.send(DecodeEvent::Token(token(
                &endless(),
                &leg.spec,
                0,
                position,
            )))
            .await;
        }
        leg.done().await;
        Ok(())
    });
    let slow = harness.add(slow).await;
    slow.report(|load| load.step_us = 1_500_000);
    soon("the step time is known", async {
        let knows = |worker: &baton_proto::v1::WorkerStatus| {
            worker.load.as_ref().is_some_and(|load| load.step_us > 0)
        };
        while !harness.list().await.workers.iter().all(knows) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    let answer = is_exact(harness.generate(by_ids(prompt_of(5), 3)).await.unwrap(), 3);
    assert_eq!(answer.receipt().attempts.len(), 1, "{:?}", answer.receipt());
}

/// The decode worker has acknowledged the pages and is lost before it says that they landed; prefill hears of
/// no failure, and its last message comes when another decode worker waits for pages already.
#[tokio::test]
async fn xfr_07_pages_that_went_to_a_lost_worker_are_computed_again_at_once() {
    let harness = Harness::start(config()).await;
    let prefill = Setup::prefill("prefill-0", endless()).plays(|mut leg| async move {
        if leg.number > 1 {
            return leg.behave(endless()).await;
        }
        leg.scheduled().await;
        let tokens = leg.first_tokens(&endless());
        for token in &tokens {
            leg.send(PrefillEvent::FirstToken(token.clone())).await;
        }
        let grant = leg.grant().await;
        assert!(leg.commit(&grant, &tokens));
        // The next grant comes too late for it.
        leg.grant().await;
        leg.send(PrefillEvent::Done(PrefillReport {
            committed: true,
            attempt: Some(grant.attempt),
            ..PrefillReport::default()
        }))
        .await;
        Ok(())
    });
    let prefill = harness.add(prefill).await;
    let spare = harness.add(Setup::decode("decode-1", endless())).await;
    make_second_choice(&spare);
    until_reported(&harness, "decode-1").await;
    let lost = Setup::decode("decode-0", endless()).plays_decode(|leg| async move {
        drop(leg.grants().await.await.unwrap());
        Err(Status::internal("by script"))
    });
    let _lost = harness.add(lost).await;
    let started = Instant::now();
    let answer = is_exact(harness.generate(long(20)).await.unwrap(), 20);
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "no lease was waited for"
    );
    assert_eq!((prefill.started(), spare.started()), (2, 2));
    let attempts = &answer.receipt().attempts;
    assert!(
        attempts[1].failure.contains("its pages went to"),
        "{attempts:?}"
    );
    assert_eq!(attempts[2].kept_tokens, 1, "{attempts:?}");
    spare.until_idle().await;
}
