//! Every way in which a worker can let a request down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use baton_cluster::http2::MAX_MESSAGE_BYTES;
use baton_proto::domain::GeneratedToken;
use baton_proto::ids::Attempt;
use baton_proto::legs::{DecodeEvent, PrefillEvent, PrefillReport};
use baton_proto::{overloaded, retry_after};
use baton_router::RouterConfig;
use baton_sampling::TokenLogprobs;
use tonic::{Code, Status};

use crate::fake::{FakeWorker, Script, Setup, endless, token};
use crate::harness::{
    Answer, Harness, by_ids, config, first_token, long, prompt_of, soon, status_of, with,
};

/// A router that soon gives up waiting for workers to come back.
pub(crate) fn impatient() -> RouterConfig {
    RouterConfig {
        grant_wait: Duration::from_millis(250),
        ..config()
    }
}

pub(crate) fn expected(tokens: u32) -> Vec<u32> {
    (0..tokens)
        .map(|position| endless()(0, position).0)
        .collect()
}

/// The answer broke off after five tokens (and what prefill workers have added since), as an error that
/// says so.
fn is_lost(mut answer: Answer) -> Status {
    let tokens = answer.only().ids.len() as u32;
    assert!(tokens >= 5, "{answer:?}");
    assert_eq!(answer.only().ids, expected(tokens));
    assert!(answer.only().finished.is_none());
    assert!(answer.done.is_none(), "neither usage nor receipt");
    let status = answer.error.take().unwrap();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let lost = format!("decode-0 was lost after {tokens} tokens");
    assert!(status.message().contains(&lost), "{status}");
    status
}

pub(crate) fn is_exact(answer: Answer, tokens: u32) -> Answer {
    let answer = answer.whole();
    assert_eq!(answer.only().ids, expected(tokens));
    answer
}

/// A worker that seems busier than the others, so that they are asked first.
pub(crate) fn make_second_choice(worker: &FakeWorker) {
    worker.report(|load| {
        load.queued_tokens = 1_000_000;
        load.queued = 10_000;
    });
}

/// Two prefill workers, the first of which plays `bad` whenever it is asked, and a decode worker.
async fn with_bad_prefill(bad: Setup) -> (Harness, FakeWorker, FakeWorker, FakeWorker) {
    with_bad_prefill_under(config(), bad).await
}

async fn with_bad_prefill_under(
    config: RouterConfig,
    bad: Setup,
) -> (Harness, FakeWorker, FakeWorker, FakeWorker) {
    let harness = Harness::start(config).await;
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    let good = harness.add(Setup::prefill("prefill-good", endless())).await;
    make_second_choice(&good);
    until_reported(&harness, "prefill-good").await;
    let bad = harness.add(bad).await;
    (harness, bad, good, decode)
}

/// Waits until the router knows the load that [`make_second_choice`] reports.
pub(crate) async fn until_reported(harness: &Harness, name: &str) {
    soon("the load is known", async {
        loop {
            let workers = harness.list().await.workers;
            let known = workers.iter().any(|worker| {
                worker.info.as_ref().unwrap().worker_id == name
                    && worker.load.as_ref().unwrap().queued_tokens == 1_000_000
            });
            if known {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn xfr_07_a_failed_prefill_is_repeated_elsewhere() {
    let after_grant = |status: fn(&str) -> Status| {
        Setup::prefill("prefill-bad", endless()).plays(move |mut leg| async move {
            leg.scheduled().await;
            leg.grant().await;
            Err(status("by script"))
        })
    };
    let silent_end = Setup::prefill("prefill-bad", endless()).plays(|mut leg| async move {
        leg.scheduled().await;
        leg.grant().await;
        Ok(())
    });
    for bad in [
        after_grant(|m| Status::internal(m)),
        after_grant(|m| Status::unavailable(m)),
        after_grant(|m| Status::aborted(m)),
        silent_end,
    ] {
        let (harness, bad, good, decode) = with_bad_prefill(bad).await;
        let started = Instant::now();
        let answer = is_exact(harness.generate(long(6)).await.unwrap(), 6);
        assert!(started.elapsed() < Duration::from_secs(2));
        assert_eq!((bad.started(), good.started(), decode.started()), (1, 1, 2));
        assert_eq!(decode.cancelled(), 1, "the waiting decode leg was dropped");
        let attempts = &answer.receipt().attempts;
        assert_eq!(attempts.len(), 2);
        assert!(
            attempts[0].failure.starts_with("prefill-bad: "),
            "{}",
            attempts[0].failure
        );
        assert_eq!(attempts[1].prefill_worker, "prefill-good");
        assert_eq!(harness.counter("retries").await, 1);
        decode.until_idle().await;
        harness.until_idle().await;
    }
}

#[tokio::test]
async fn xfr_07_a_prefill_worker_that_hangs_is_left_after_its_time() {
    let (harness, bad, _good, _decode) =
        with_bad_prefill(Setup::prefill("prefill-bad", endless())).await;
    bad.hang(true);
    let started = Instant::now();
    let answer = is_exact(harness.generate(long(4)).await.unwrap(), 4);
    assert!(started.elapsed() < Duration::from_secs(3));
    assert!(
        answer.receipt().attempts[0]
            .failure
            .contains("did not accept the leg in time")
    );
    bad.until_idle().await;
}

#[tokio::test]
async fn xfr_07_a_prefill_worker_that_closes_its_connections_is_left_at_once() {
    let bad = Setup {
        hangs_up: true,
        ..Setup::prefill("prefill-bad", endless())
    };
    let (harness, bad, good, decode) = with_bad_prefill(bad).await;
    let started = Instant::now();
    let answer = is_exact(harness.generate(long(6)).await.unwrap(), 6);
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!((bad.started(), good.started(), decode.started()), (0, 1, 1));
    let attempts = &answer.receipt().attempts;
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert!(
        attempts[0].failure.starts_with("prefill-bad: "),
        "{attempts:?}"
    );
    assert_eq!(harness.counter("retries").await, 1);
    harness.until_idle().await;
}

#[tokio::test]
async fn xfr_07_attempts_at_prefill_are_bounded() {
    let harness = Harness::start(RouterConfig {
        max_attempts: 3,
        ..config()
    })
    .await;
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    let mut workers = Vec::new();
    for number in 0..5 {
        let name = format!("prefill-{number}");
        let failing = Setup::prefill(&name, endless()).plays(|mut leg| async move {
            leg.scheduled().await;
            leg.grant().await;
            Err(Status::internal("by script"))
        });
        workers.push(harness.add(failing).await);
    }
    let status = status_of(harness.generate(long(6)).await);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status.message().contains("3 attempts") && status.message().contains("by script"),
        "{status}"
    );
    let asked: usize = workers.iter().map(FakeWorker::started).sum();
    assert_eq!(asked, 3);
    assert!(workers.iter().all(|worker| worker.started() <= 1));
    decode.until_idle().await;
    assert_eq!((decode.started(), decode.cancelled()), (3, 3));
    harness.until_counter("requests_unavailable", 1).await;
}

#[tokio::test]
async fn xfr_07_silence_after_the_start_is_bounded_too() {
    let config = RouterConfig {
        progress_timeout: Duration::from_secs(1),
        ..config()
    };
    let harness = Harness::start(config).await;
    let bad = Setup::prefill("prefill-0", endless()).plays(|leg| async move {
        leg.scheduled().await;
        std::future::pending().await
    });
    let bad = harness.add(bad).await;
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    let answer = is_exact(harness.generate(long(4)).await.unwrap(), 4);
    let attempts = &answer.receipt().attempts;
    assert!(
        attempts[0].failure.contains("made no progress"),
        "{attempts:?}"
    );
    assert_eq!(attempts[1].reason, "local: no prefill worker is usable");
    bad.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test]
async fn xfr_05_bad_parameters_never_reach_prefill() {
    let (harness, prefill, decode) = Harness::pair(endless()).await;
    let refused = harness
        .generate(with(long(4), |s| s.temperature = Some(f32::NAN)))
        .await;
    assert_eq!(status_of(refused).code(), Code::InvalidArgument);
    assert_eq!((prefill.started(), decode.started()), (0, 0));
}

#[tokio::test]
async fn xfr_05_a_refusal_by_decode_releases_prefill_at_once() {
    let (harness, prefill, decode) = Harness::pair(endless()).await;
    let cases = [
        (Status::invalid_argument("no"), Code::InvalidArgument),
        (
            overloaded("pool is full", Duration::from_millis(70)),
            Code::ResourceExhausted,
        ),
        (Status::unavailable("draining"), Code::Unavailable),
    ];
    for (refusal, code) in cases {
        decode.refuse(Some(refusal));
        let status = status_of(harness.generate(long(4)).await);
        assert_eq!(status.code(), code, "{status}");
        if code == Code::ResourceExhausted {
            assert_eq!(retry_after(&status), Some(Duration::from_millis(70)));
        }
        soon("prefill is released", prefill.until_idle()).await;
        harness.until_idle().await;
    }
    // None of them counts against a worker.
    decode.refuse(None);
    assert!(
        harness
            .list()
            .await
            .workers
            .iter()
            .all(|worker| worker.state == "ready")
    );
    is_exact(harness.generate(long(4)).await.unwrap(), 4);
}

#[tokio::test]
async fn a_decode_worker_that_refuses_costs_another_choice_only() {
    let harness = Harness::start(config()).await;
    let prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
    let full = harness.add(Setup::decode("decode-full", endless())).await;
    full.refuse(Some(overloaded("full", Duration::from_millis(50))));
    let spare = harness.add(Setup::decode("decode-spare", endless())).await;
    for _ in 0..8 {
        let answer = is_exact(harness.generate(long(3)).await.unwrap(), 3);
        assert_eq!(answer.receipt().attempts[0].decode_worker, "decode-spare");
    }
    assert_eq!((prefill.started(), spare.started()), (8, 8));
}

#[tokio::test]
async fn pages_that_become_free_within_the_wait_are_used() {
    let (harness, prefill, decode) = Harness::pair(endless()).await;
    decode.refuse(Some(overloaded("full", Duration::from_millis(50))));
    let (answer, ()) = tokio::join!(harness.generate(long(4)), async {
        decode.until_started(3).await;
        decode.refuse(None);
    });
    is_exact(answer.unwrap(), 4);
    assert_eq!(prefill.started(), 1, "prefill went on meanwhile");
}

#[tokio::test]
async fn xfr_06_aborts_of_prefill_free_decode_at_once() {
    let harness = Harness::start(config()).await;
    let aborting = Arc::new(AtomicBool::new(true));
    let aborts = Arc::clone(&aborting);
    let prefill = Setup::prefill("prefill-0", endless()).plays(move |mut leg| {
        let abort = aborts.load(Ordering::SeqCst) && leg.number % 10 != 0;
        async move {
            if abort {
                leg.scheduled().await;
                leg.grant().await;
                return Err(Status::aborted("by script"));
            }
            leg.behave(endless()).await
        }
    });
    let _prefill = harness.add(prefill).await;
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let mut client = harness.client();
            tokio::spawn(async move { Answer::of(&mut client, long(3)).await })
        })
        .collect();
    for call in calls {
        is_exact(call.await.unwrap().unwrap(), 3);
    }
    let started = Instant::now();
    decode.until_idle().await;
    harness.until_idle().await;
    assert!(started.elapsed() < Duration::from_secs(10));
    aborting.store(false, Ordering::SeqCst);
    for _ in 0..20 {
        is_exact(harness.generate(long(3)).await.unwrap(), 3);
    }
}

#[tokio::test]
async fn a_prefill_worker_lost_after_its_first_token_repeats_nothing() {
    let bad = Setup::prefill("prefill-bad", endless()).plays(|mut leg| async move {
        leg.scheduled().await;
        for token in leg.first_tokens(&endless()) {
            leg.send(PrefillEvent::FirstToken(token)).await;
        }
        leg.grant().await;
        std::future::pending().await
    });
    let (harness, mut bad, good, decode) = with_bad_prefill(bad).await;
    let mut stream = harness
        .client()
        .generate(long(5))
        .await
        .unwrap()
        .into_inner();
    let first = first_token(&mut stream).await;
    assert_eq!((first.position, first.token_ids), (0, expected(1)));
    decode.until_started(1).await;
    bad.kill();
    let mut rest = Vec::new();
    let mut done = None;
    while let Some(response) = soon("an event", stream.message()).await.unwrap() {
        use baton_proto::v1::generate_response::Event;
        match response.event.unwrap() {
            Event::Token(token) => rest.extend(token.token_ids),
            Event::Prompt(_) | Event::Finished(_) => {}
            Event::Done(event) => done = Some(event),
        }
    }
    assert_eq!(rest, expected(5)[1..]);
    assert_eq!(good.started(), 1);
    let receipt = done.unwrap().receipt.unwrap();
    assert_eq!(receipt.attempts.len(), 2);
    assert_eq!(receipt.attempts[1].kept_tokens, 1, "{receipt:?}");
    assert_eq!(harness.counter("tokens_contradicted").await, 0);
    assert_eq!(harness.counter("tokens_dropped").await, 0);
    decode.until_idle().await;
}

#[tokio::test]
async fn a_decode_worker_lost_before_landing_is_replaced_on_the_same_prefill() {
    let harness = Harness::start(config()).await;
    let prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
    let bad = Setup::decode("decode-bad", endless()).plays_decode(|leg| async move {
        drop(leg.grants().await);
        Err(Status::internal("by script"))
    });
    let bad = harness.add(bad).await;
    let good = harness.add(Setup::decode("decode-good", endless())).await;
    make_second_choice(&good);
    until_reported(&harness, "decode-good").await;
    let answer = is_exact(harness.generate(long(5)).await.unwrap(), 5);
    assert_eq!(
        (prefill.started(), bad.started(), good.started()),
        (1, 1, 1)
    );
    let attempts = &answer.receipt().attempts;
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert_eq!(
        (attempts[0].decode_worker.as_str(), attempts[0].attempt),
        ("decode-bad", 1)
    );
    assert_eq!(
        (attempts[1].decode_worker.as_str(), attempts[1].attempt),
        ("decode-good", 2)
    );
    assert_eq!(attempts[1].prefill_worker, "prefill-0");
    assert_eq!(harness.counter("grant_retries").await, 1);
}

#[tokio::test]
async fn a_broken_transfer_gets_another_grant() {
    let harness = Harness::start(config()).await;
    let prefill = Setup::prefill("prefill-0", endless()).plays(|mut leg| async move {
        leg.scheduled().await;
        let tokens = leg.first_tokens(&endless());
        for token in &tokens {
            leg.send(PrefillEvent::FirstToken(token.clone())).await;
        }
        let torn = leg.grant().await;
        let reason = "torn".to_owned();
        leg.send(PrefillEvent::TransferFailed {
            attempt: torn.attempt,
            reason,
        })
        .await;
        let grant = leg.grant().await;
        assert_eq!(grant.attempt, Attempt(2));
        assert!(leg.commit(&grant, &tokens));
        leg.send(crate::fake::PrefillFake::report(true)).await;
        Ok(())
    });
    let prefill = harness.add(prefill).await;
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    let answer = is_exact(harness.generate(long(5)).await.unwrap(), 5);
    assert_eq!((prefill.started(), decode.started()), (1, 2));
    assert!(answer.receipt().attempts[0].failure.contains("torn"));
    decode.until_idle().await;
}

#[tokio::test]
async fn a_hand_off_that_nobody_granted_is_a_failure_of_its_worker() {
    for (is_scheduled, attempt) in [(false, None), (true, None), (true, Some(Attempt(1)))] {
        let bad = Setup::prefill("prefill-bad", endless()).plays(move |leg| async move {
            if is_scheduled {
                leg.scheduled().await;
            }
            leg.send(PrefillEvent::Done(PrefillReport {
                committed: true,
                attempt,
                ..PrefillReport::default()
            }))
            .await;
            std::future::pending().await
        });
        let patient = RouterConfig {
            grant_wait: Duration::from_mins(10),
            ..config()
        };
        let (harness, bad, _good, decode) = with_bad_prefill_under(patient, bad).await;
        // No grant comes meanwhile.
        decode.refuse(Some(overloaded("full", Duration::from_millis(20))));
        let waiting = async {
            until_states(&harness, &[("prefill-bad", "quarantined")]).await;
            decode.refuse(None);
        };
        let (answer, ()) = tokio::join!(harness.generate(long(20)), waiting);
        let answer = is_exact(answer.unwrap(), 20);
        let attempts = &answer.receipt().attempts;
        assert!(
            attempts[0].failure.contains("nobody granted"),
            "{attempts:?}"
        );
        assert_eq!(bad.started(), 1, "{attempts:?}");
    }
}

#[tokio::test]
async fn attempts_are_bounded() {
    let harness = Harness::start(RouterConfig {
        max_attempts: 3,
        ..config()
    })
    .await;
    let failing = Setup::decode("decode-0", endless())
        .plays_decode(|_| async { Err(Status::internal("by script")) });
    let decode = harness.add(failing).await;
    let status = status_of(harness.generate(by_ids(prompt_of(5), 4)).await);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(decode.started(), 3);
    assert!(status.message().contains("3 attempts"), "{status}");
}

/// How a decode worker ends after some tokens.
pub(crate) type End = fn(&crate::fake::DecodeFake) -> Result<(), Status>;

/// A decode worker that ends so after five tokens, and at once when it is to resume.
pub(crate) fn decode_that(ends: End) -> Setup {
    Setup::decode("decode-0", endless()).plays_decode(move |leg| async move {
        if !leg.spec.completions.is_empty() {
            return ends(&leg);
        }
        if !leg.local_prefill {
            let first = leg.grants().await.await.unwrap();
            leg.landed(first).await;
        }
        let from = u32::from(!leg.local_prefill);
        for position in from..5 {
            let token = token(&endless(), &leg.spec, 0, position);
            leg.send(DecodeEvent::Token(token)).await;
        }
        ends(&leg)
    })
}

#[tokio::test]
async fn str_04_str_05_a_lost_decode_worker_that_nobody_replaces_is_an_error() {
    let ends: [End; 3] = [
        |_| Ok(()),
        |_| Err(Status::aborted("cancelled by an operator")),
        |_| Err(Status::internal("a fault")),
    ];
    for end in ends {
        for request in [long(50), by_ids(prompt_of(5), 50)] {
            let harness = Harness::start(impatient()).await;
            let prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
            let _decode = harness.add(decode_that(end)).await;
            let answer = harness.generate(request).await.unwrap();
            is_lost(answer);
            prefill.until_idle().await;
            harness.until_idle().await;
            harness.until_counter("requests_unavailable", 1).await;
            assert_eq!(harness.counter("requests_ok").await, 0);
        }
    }
}

#[tokio::test]
async fn str_05_a_drain_that_cuts_tokens_off_is_no_success() {
    for request in [long(50), by_ids(prompt_of(5), 50)] {
        let harness = Harness::start(impatient()).await;
        let prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
        let draining = decode_that(|_| Err(Status::unavailable("drain_limit: shutting down")));
        let _draining = harness.add(draining).await;
        let status = is_lost(harness.generate(request).await.unwrap());
        assert!(status.message().contains("drain_limit"), "{status}");
        harness.until_counter("requests_unavailable", 1).await;
        for outcome in ["requests_ok", "requests_cancelled", "requests_failed"] {
            assert_eq!(harness.counter(outcome).await, 0, "{outcome}");
        }
        assert_eq!(harness.counter("requests_received").await, 1);
        // A worker that drains has not failed.
        assert_eq!(harness.counter("worker_failures").await, 0);
        prefill.until_idle().await;
        harness.until_idle().await;
    }
}

#[tokio::test]
async fn a_request_while_all_workers_are_being_found_again_waits_for_them() {
    let (harness, _prefill, mut decode) = Harness::pair(endless()).await;
    decode.kill();
    let gone = async {
        while harness.list().await.workers.len() > 1 {
            tokio::task::yield_now().await;
        }
    };
    soon("the router to notice", gone).await;
    let back = harness.add(Setup::decode("decode-1", endless()));
    let (answer, _back) = tokio::join!(harness.generate(by_ids(prompt_of(100), 3)), back);
    let answer = answer.unwrap().whole();
    assert_eq!(answer.receipt().attempts.len(), 1, "nothing has failed");

    // Nobody comes: the wait ends by itself.
    let (harness, _prefill, mut decode) = Harness::pair(endless()).await;
    decode.kill();
    let refused = status_of(harness.generate(by_ids(prompt_of(100), 3)).await);
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
}

#[tokio::test]
async fn str_04_a_killed_decode_worker_that_nobody_replaces_is_an_error() {
    let (harness, prefill, mut decode) = Harness::pair(endless()).await;
    let mut stream = harness
        .client()
        .generate(long(2000))
        .await
        .unwrap()
        .into_inner();
    for _ in 0..5 {
        first_token(&mut stream).await;
    }
    decode.kill();
    let error = loop {
        match soon("an event", stream.message()).await {
            Ok(Some(response)) => {
                assert!(matches!(
                    response.event.unwrap(),
                    baton_proto::v1::generate_response::Event::Token(_)
                ));
            }
            Ok(None) => panic!("a silent end"),
            Err(status) => break status,
        }
    };
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let message = error.message();
    assert!(
        message.contains("decode-0 was lost after")
            && message.contains(" tokens: connection lost; then: no decode worker is usable"),
        "{error}"
    );
    prefill.until_idle().await;
    harness.until_counter("requests_unavailable", 1).await;
    assert_eq!(harness.counter("requests_ok").await, 0);
}

#[tokio::test]
async fn an_answer_over_the_message_limit_is_the_workers_fault() {
    for tokens_before in [0, 3] {
        let harness = Harness::start(impatient()).await;
        let decode = Setup::decode("decode-0", endless()).plays_decode(move |leg| async move {
            for position in 0..tokens_before {
                let token = token(&endless(), &leg.spec, 0, position);
                leg.send(DecodeEvent::Token(token)).await;
            }
            let mut large = token(&endless(), &leg.spec, 0, tokens_before);
            large.logprobs = Some(TokenLogprobs {
                chosen: -1.0,
                top: vec![(1, -1.0); MAX_MESSAGE_BYTES / 4],
            });
            leg.send(DecodeEvent::Token(large)).await;
            std::future::pending().await
        });
        let _decode = harness.add(decode).await;
        let status = status_of(harness.generate(by_ids(prompt_of(5), 50)).await);
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        if tokens_before > 0 {
            // Otherwise it is tried again until no worker is left.
            assert!(status.message().contains("OUT_OF_RANGE"), "{status}");
        }
        harness.until_counter("requests_unavailable", 1).await;
        assert_eq!(harness.counter("requests_invalid").await, 0);
        assert!(harness.counter("worker_failures").await > 0);
    }
}

#[tokio::test]
async fn tokens_of_other_attempts_and_positions_are_dropped() {
    let harness = Harness::start(config()).await;
    let worker = Setup::decode("decode-0", endless()).plays_decode(|leg| async move {
        let right = |position| token(&endless(), &leg.spec, 0, position);
        let stray = |position, attempt| GeneratedToken {
            attempt,
            token_id: 99,
            ..right(position)
        };
        for event in [
            right(0),
            stray(1, Attempt(leg.spec.attempt.0 + 1)),
            right(1),
            right(0),
            right(2),
            right(3),
        ] {
            leg.send(DecodeEvent::Token(event)).await;
        }
        leg.done().await;
        Ok(())
    });
    let _worker = harness.add(worker).await;
    is_exact(harness.generate(by_ids(prompt_of(5), 4)).await.unwrap(), 4);
    assert_eq!(harness.counter("tokens_dropped").await, 2);
}

#[tokio::test]
async fn a_gap_in_positions_or_a_foreign_choice_is_a_failure() {
    let wrong: [fn(GeneratedToken) -> GeneratedToken; 3] = [
        |token| GeneratedToken {
            position: 2,
            ..token
        },
        |token| GeneratedToken { choice: 1, ..token },
        |token| GeneratedToken {
            token_id: 1_000_000,
            ..token
        },
    ];
    for lie in wrong {
        let harness = Harness::start(impatient()).await;
        let worker = Setup::decode("decode-0", endless()).plays_decode(move |leg| async move {
            leg.send(DecodeEvent::Token(token(&endless(), &leg.spec, 0, 0)))
                .await;
            leg.send(DecodeEvent::Token(lie(token(&endless(), &leg.spec, 0, 1))))
                .await;
            std::future::pending().await
        });
        let worker = harness.add(worker).await;
        let mut answer = harness.generate(by_ids(prompt_of(5), 4)).await.unwrap();
        assert_eq!(answer.only().ids, expected(1));
        assert_eq!(answer.error.take().unwrap().code(), Code::Unavailable);
        worker.until_idle().await;
    }
}

fn with_timeout(
    request: baton_proto::v1::GenerateRequest,
    time: Duration,
) -> tonic::Request<baton_proto::v1::GenerateRequest> {
    let mut request = tonic::Request::new(request);
    request.set_timeout(time);
    request
}

#[tokio::test]
async fn the_deadline_ends_every_phase() {
    let stuck_in_queue: Setup =
        Setup::prefill("prefill-0", endless()).plays(|_| std::future::pending());
    let stuck_in_prefill = Setup::prefill("prefill-0", endless()).plays(|leg| async move {
        leg.scheduled().await;
        std::future::pending().await
    });
    let slow_decode = Setup::prefill("prefill-0", endless());
    for prefill in [stuck_in_queue, stuck_in_prefill, slow_decode] {
        let harness = Harness::start(config()).await;
        let prefill = harness.add(prefill).await;
        let decode = harness.add(Setup::decode("decode-0", endless())).await;
        let started = Instant::now();
        let call = with_timeout(long(2000), Duration::from_millis(400));
        // The server's own answer, not the client's clock: the stream is open by then.
        let mut stream = harness.client().generate(call).await.unwrap().into_inner();
        let status = loop {
            match soon("an event", stream.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a silent end"),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(started.elapsed() < Duration::from_secs(2));
        prefill.until_idle().await;
        decode.until_idle().await;
        harness.until_counter("requests_deadline", 1).await;
    }
}

#[tokio::test]
async fn rte_01_clients_errors_and_cancels_do_not_count_against_workers() {
    let (harness, _prefill, decode) = Harness::pair(endless()).await;
    let too_long = vec![20; 5000];
    for _ in 0..50 {
        let status = status_of(harness.generate(by_ids(too_long.clone(), 4)).await);
        assert_eq!(status.code(), Code::InvalidArgument);
        let mut stream = harness
            .client()
            .generate(long(1000))
            .await
            .unwrap()
            .into_inner();
        first_token(&mut stream).await;
    }
    decode.until_idle().await;
    harness.until_counter("requests_cancelled", 50).await;
    let list = harness.list().await;
    assert!(list.workers.iter().all(|worker| worker.state == "ready"));
    assert_eq!(harness.counter("worker_failures").await, 0);
    is_exact(harness.generate(long(4)).await.unwrap(), 4);
}

/// A deadline that passes while a worker has not yet answered is the client's doing.
#[tokio::test]
async fn rte_01_a_storm_of_tiny_deadlines_harms_nobody_else() {
    for request in [long(4), by_ids(prompt_of(5), 4)] {
        let (harness, _prefill, decode) = Harness::pair(endless()).await;
        decode.hang(true);
        let calls: Vec<_> = (0..40)
            .map(|number| {
                let mut client = harness.client();
                let call = with_timeout(request.clone(), Duration::from_millis(2 + number % 20));
                tokio::spawn(async move {
                    match client.generate(call).await {
                        Ok(response) => {
                            let mut stream = response.into_inner();
                            while let Some(event) = stream.message().await? {
                                drop(event);
                            }
                            Ok(())
                        }
                        Err(status) => Err(status),
                    }
                })
            })
            .collect();
        for call in calls {
            let status = soon("an end", call).await.unwrap().unwrap_err();
            let by_clients_clock =
                status.code() == Code::Cancelled && status.message().contains("Timeout expired");
            assert!(
                status.code() == Code::DeadlineExceeded || by_clients_clock,
                "{status}"
            );
        }
        decode.hang(false);
        assert_eq!(harness.counter("worker_failures").await, 0);
        let list = harness.list().await;
        assert!(list.workers.iter().all(|worker| worker.state == "ready"));
        is_exact(harness.generate(request).await.unwrap(), 4);
    }
}

#[tokio::test]
async fn rte_08_quarantine_never_takes_the_last_decode_worker_away() {
    let harness = Harness::start(RouterConfig {
        max_attempts: 1,
        ..config()
    })
    .await;
    let worker = Setup::decode("decode-0", endless()).plays_decode(move |leg| async move {
        if leg.spec.prompt_ids.len() == 6 {
            // Not the process that the router takes it for: a long quarantine.
            Err(Status::failed_precondition("by script"))
        } else {
            leg.behave(endless()).await
        }
    });
    let _worker = harness.add(worker).await;
    let status = status_of(harness.generate(by_ids(prompt_of(6), 4)).await);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let state = harness.list().await.workers[0].state.clone();
    assert!(state.starts_with("quarantined: "), "{state}");
    is_exact(harness.generate(by_ids(prompt_of(5), 4)).await.unwrap(), 4);
    assert_eq!(harness.list().await.workers[0].state, "ready");
}

#[tokio::test]
async fn rte_03_without_a_decode_worker_nothing_is_sent() {
    // Who waited for one would wait for longer than the test does.
    let config = RouterConfig {
        grant_wait: Duration::from_mins(1),
        ..config()
    };
    let harness = Harness::start(config).await;
    let prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
    let status = status_of(harness.generate(long(4)).await);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(prefill.started(), 0);
}

#[tokio::test]
async fn rte_03_quarantine_ends_with_a_probe_that_succeeds() {
    let harness = Harness::start(config()).await;
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    let worker = Setup::decode("decode-0", endless()).plays_decode(move |leg| {
        let broken = is_broken.load(Ordering::SeqCst);
        async move {
            if broken {
                Err(Status::internal("by script"))
            } else {
                leg.behave(endless()).await
            }
        }
    });
    let _worker = harness.add(worker).await;
    let status = status_of(harness.generate(by_ids(prompt_of(5), 4)).await);
    assert_eq!(status.code(), Code::Unavailable);
    let state = harness.list().await.workers[0].state.clone();
    assert!(state.starts_with("quarantined: INTERNAL"), "{state}");
    broken.store(false, Ordering::SeqCst);
    soon("the quarantine ends", async {
        loop {
            match harness.generate(by_ids(prompt_of(5), 4)).await {
                Ok(answer) if answer.error.is_none() => return drop(is_exact(answer, 4)),
                refused => {
                    let status = status_of(refused);
                    assert_eq!(status.code(), Code::Unavailable);
                    assert!(retry_after(&status).is_some(), "{status}");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(harness.list().await.workers[0].state, "ready");
}

/// Waits until the router shows these workers, in the order of their names, in states that begin so.
pub(crate) async fn until_states(harness: &Harness, wanted: &[(&str, &str)]) {
    soon("the states", async {
        loop {
            let workers = harness.list().await.workers;
            let is_so = |(name, state): &(&str, &str)| {
                workers.iter().any(|worker| {
                    worker.info.as_ref().unwrap().worker_id == *name
                        && worker.state.starts_with(state)
                })
            };
            if wanted.iter().all(is_so) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn rte_03_prefill_workers_that_fail_are_probed_back_at_no_clients_cost() {
    let harness = Harness::start(config()).await;
    let bad = [
        harness.add(Setup::prefill("prefill-a", endless())).await,
        harness.add(Setup::prefill("prefill-b", endless())).await,
    ];
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    for worker in &bad {
        worker.refuse(Some(Status::internal("by script")));
    }
    let answer = is_exact(harness.generate(long(4)).await.unwrap(), 4);
    let attempts = &answer.receipt().attempts;
    assert_eq!(attempts.len(), 3, "{attempts:?}");
    // Both legs' workers are known before one is asked: nothing is sent to a pair that lacks one.
    for _ in 0..10 {
        let answer = is_exact(harness.generate(long(4)).await.unwrap(), 4);
        let attempts = &answer.receipt().attempts;
        assert_eq!(attempts.len(), 1, "{attempts:?}");
        assert_eq!(attempts[0].reason, "local: no prefill worker is usable");
    }
    assert_eq!(bad.each_ref().map(FakeWorker::started), [1, 1]);
    assert_eq!(decode.started(), 11);
    let quarantined = [
        ("prefill-a", "quarantined: "),
        ("prefill-b", "quarantined: "),
    ];
    until_states(&harness, &quarantined).await;
    for worker in &bad {
        worker.refuse(None);
    }
    // No request is needed to find out.
    until_states(&harness, &[("prefill-a", "ready"), ("prefill-b", "ready")]).await;
    let answer = is_exact(harness.generate(long(4)).await.unwrap(), 4);
    assert_eq!(answer.receipt().attempts.len(), 1);
    assert!(
        answer.receipt().attempts[0]
            .prefill_worker
            .starts_with("prefill-")
    );
    assert_eq!(
        harness.counter("worker_failures").await,
        2,
        "probes are not counted"
    );
}

#[tokio::test]
async fn rte_06_a_killed_worker_costs_nobody_an_answer() {
    let harness = Harness::start(config()).await;
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        workers.push(
            harness
                .add(Setup::prefill(&format!("prefill-{name}"), endless()))
                .await,
        );
        workers.push(
            harness
                .add(Setup::decode(&format!("decode-{name}"), endless()))
                .await,
        );
    }
    for round in 0..40 {
        if round == 10 {
            workers[0].kill();
            workers[1].kill();
        }
        let request = if round % 2 == 0 {
            long(3)
        } else {
            by_ids(prompt_of(5), 3)
        };
        is_exact(harness.generate(request).await.unwrap(), 3);
    }
}

#[tokio::test]
async fn rte_06_a_stopped_worker_costs_at_most_the_first_response_time() {
    let harness = Harness::start(config()).await;
    let stopped = harness.add(Setup::decode("decode-a", endless())).await;
    let _other = harness.add(Setup::decode("decode-b", endless())).await;
    stopped.hang(true);
    for _ in 0..20 {
        let started = Instant::now();
        is_exact(harness.generate(by_ids(prompt_of(5), 3)).await.unwrap(), 3);
        assert!(started.elapsed() < Duration::from_secs(2));
    }
    assert!(stopped.started() <= 6, "{} tries", stopped.started());
}

#[tokio::test]
async fn dsc_07_the_wrong_process_at_an_address_is_left_alone() {
    let harness = Harness::start(config()).await;
    let wrong = harness.add(Setup::decode("decode-a", endless())).await;
    let right = harness.add(Setup::decode("decode-b", endless())).await;
    wrong.refuse(Some(Status::failed_precondition("another incarnation")));
    for _ in 0..20 {
        is_exact(harness.generate(by_ids(prompt_of(5), 3)).await.unwrap(), 3);
    }
    assert!(wrong.started() <= 1);
    assert_eq!(right.started(), 20);
}

#[tokio::test]
async fn workers_that_disagree_are_noticed() {
    let other: Script = Arc::new(|_, _| (42, None));
    let harness = Harness::start(config()).await;
    let prefill = Setup::prefill("prefill-0", endless()).plays(move |mut leg| {
        let other = Arc::clone(&other);
        async move {
            leg.scheduled().await;
            for token in leg.first_tokens(&endless()) {
                leg.send(PrefillEvent::FirstToken(token)).await;
            }
            let grant = leg.grant().await;
            leg.commit(&grant, &leg.first_tokens(&other));
            leg.send(crate::fake::PrefillFake::report(true)).await;
            Ok(())
        }
    });
    let _prefill = harness.add(prefill).await;
    let _decode = harness.add(Setup::decode("decode-0", endless())).await;
    is_exact(harness.generate(long(3)).await.unwrap(), 3);
    assert_eq!(harness.counter("tokens_contradicted").await, 1);
}
