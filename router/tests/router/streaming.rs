//! Cancelling in every phase, slow readers, and what is streamed when.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_cluster::http2;
use baton_proto::legs::PrefillEvent;
use baton_proto::v1;
use baton_proto::v1::generate_response::Event;
use baton_router::RouterConfig;
use prost::Message as _;
use tokio::sync::Semaphore;
use tonic::{Code, Streaming};

use crate::fake::{FakeWorker, Setup, endless};
use crate::harness::{Answer, Harness, by_ids, config, first_token, long, prompt_of, soon, with};

/// How far a request gets before it stands still.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Phase {
    Queued,
    Prefilling,
    Transferring,
    Decoding,
}

pub(crate) const PHASES: [Phase; 4] = [
    Phase::Queued,
    Phase::Prefilling,
    Phase::Transferring,
    Phase::Decoding,
];

pub(crate) fn stuck(phase: Phase) -> (Setup, Setup) {
    let prefill = Setup::prefill("prefill-0", endless()).plays(move |mut leg| async move {
        if phase == Phase::Queued {
            std::future::pending::<()>().await;
        }
        leg.scheduled().await;
        if phase == Phase::Prefilling {
            std::future::pending::<()>().await;
        }
        if phase == Phase::Transferring {
            leg.grant().await;
            std::future::pending::<()>().await;
        }
        leg.behave(endless()).await
    });
    (prefill, Setup::decode("decode-0", endless()))
}

#[tokio::test]
async fn cancel_reaches_both_workers_in_every_phase() {
    for phase in PHASES {
        let harness = Harness::start(config()).await;
        let (prefill, decode) = stuck(phase);
        let prefill = harness.add(prefill).await;
        let decode = harness.add(decode).await;
        let mut stream = harness
            .client()
            .generate(long(2000))
            .await
            .unwrap()
            .into_inner();
        prefill.until_started(1).await;
        match phase {
            Phase::Queued => {}
            Phase::Prefilling | Phase::Transferring => decode.until_started(1).await,
            Phase::Decoding => {
                for _ in 0..5 {
                    first_token(&mut stream).await;
                }
            }
        }
        let cancelled = Instant::now();
        drop(stream);
        prefill.until_idle().await;
        decode.until_idle().await;
        harness.until_idle().await;
        assert!(cancelled.elapsed() < Duration::from_secs(10), "{phase:?}");
        harness.until_counter("requests_cancelled", 1).await;
        assert_eq!(harness.counter("worker_failures").await, 0, "{phase:?}");
    }
}

#[tokio::test]
async fn str_01_a_hundred_disconnects_leave_nothing() {
    let (harness, _prefill, decode) = Harness::pair(endless()).await;
    for round in 0..100 {
        // Half of them lose their connection, not just their stream.
        let mut client = if round % 2 == 0 {
            harness.client()
        } else {
            harness.new_client()
        };
        let mut stream = client.generate(long(1500)).await.unwrap().into_inner();
        for _ in 0..3 {
            first_token(&mut stream).await;
        }
    }
    decode.until_idle().await;
    harness.until_idle().await;
    harness.until_counter("requests_cancelled", 100).await;
    assert_eq!(decode.cancelled(), 100);
}

/// Computes one prompt at a time, and each of the first ten would take for ever.
pub(crate) fn one_prompt_at_a_time() -> Setup {
    let places = Arc::new(Semaphore::new(1));
    Setup::prefill("prefill-0", endless()).plays(move |leg| {
        let places = Arc::clone(&places);
        async move {
            let _place = places.acquire_owned().await.unwrap();
            if leg.number <= 10 {
                leg.scheduled().await;
                std::future::pending::<()>().await;
            }
            leg.behave(endless()).await
        }
    })
}

#[tokio::test]
async fn str_02_leaving_before_the_first_token_stops_prefill() {
    let harness = Harness::start(config()).await;
    let prefill = harness.add(one_prompt_at_a_time()).await;
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    for number in 1..=10 {
        let stream = harness.client().generate(long(20)).await.unwrap();
        prefill.until_started(number).await;
        drop(stream);
    }
    let answer = harness.generate(long(3)).await.unwrap().whole();
    assert!(answer.first_token_after < Duration::from_secs(10));
    // A call may be dropped before its script begins: then it counts as started only.
    prefill.until_idle().await;
    assert_eq!(prefill.started(), 11);
    decode.until_idle().await;
}

#[tokio::test]
async fn the_first_token_does_not_wait_for_the_hand_off() {
    let harness = Harness::start(config()).await;
    let gate = Arc::new(Semaphore::new(0));
    let opens = Arc::clone(&gate);
    let prefill = Setup::prefill("prefill-0", endless()).plays(move |mut leg| {
        let gate = Arc::clone(&gate);
        async move {
            leg.scheduled().await;
            let tokens = leg.first_tokens(&endless());
            for token in &tokens {
                leg.send(PrefillEvent::FirstToken(token.clone())).await;
            }
            let grant = leg.grant().await;
            let _open = gate.acquire().await.unwrap();
            leg.commit(&grant, &tokens);
            leg.send(crate::fake::PrefillFake::report(true)).await;
            Ok(())
        }
    });
    let _prefill = harness.add(prefill).await;
    let _decode = harness.add(Setup::decode("decode-0", endless())).await;
    let mut stream = harness
        .client()
        .generate(long(4))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first_token(&mut stream).await.position, 0);
    let early = tokio::time::timeout(Duration::from_millis(100), stream.message()).await;
    assert!(early.is_err(), "the second token needs the hand-off");
    opens.add_permits(1);
    assert_eq!(first_token(&mut stream).await.position, 1);
}

/// A router that soon gives up who does not read, and a worker with pages for long answers.
pub(crate) async fn for_slow_readers() -> (Harness, FakeWorker) {
    let config = RouterConfig {
        write_deadline: Duration::from_millis(400),
        client_buffer: 8,
        ..config()
    };
    let harness = Harness::start(config).await;
    let decode = Setup {
        pages: 5000,
        ..Setup::decode("decode-0", endless())
    };
    let decode = harness.add(decode).await;
    (harness, decode)
}

#[tokio::test]
async fn str_07_xfr_20_a_slow_reader_is_cancelled_and_others_on_its_connection_go_on() {
    let (harness, decode) = for_slow_readers().await;
    let large = with(by_ids(prompt_of(5), 1900), |sampling| {
        sampling.n = Some(16);
        sampling.logprobs = Some(20);
    });
    let mut slow = harness.client().generate(large).await.unwrap().into_inner();
    first_token(&mut slow).await;
    let others: Vec<_> = (0..8)
        .map(|_| {
            let mut client = harness.client();
            tokio::spawn(async move { Answer::of(&mut client, by_ids(prompt_of(5), 50)).await })
        })
        .collect();
    for other in others {
        assert_eq!(other.await.unwrap().unwrap().whole().only().ids.len(), 50);
    }
    harness.until_counter("slow_readers", 1).await;
    decode.until_idle().await;
    let status = loop {
        match soon("the rest", slow.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a silent end"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Aborted, "{status}");
}

/// Reads a stream to its first event of several tokens, which only a client that is behind gets; the
/// bytes before it.
async fn bytes_before_merging(
    stream: &mut Streaming<v1::GenerateResponse>,
    answer: &mut Answer,
) -> usize {
    let mut bytes = 0;
    loop {
        let response = soon("an event", stream.message()).await.unwrap().unwrap();
        let size = response.encoded_len();
        let event = response.event.unwrap();
        let merged = matches!(&event, Event::Token(token) if token.token_ids.len() > 1);
        answer.take(event, Instant::now());
        if merged {
            return bytes;
        }
        bytes += size;
    }
}

#[tokio::test]
async fn xfr_20_streams_that_nobody_reads_leave_their_connection_to_the_others() {
    const SLOW: u32 = 6;
    const TOKENS: u32 = 1000;
    let config = RouterConfig {
        client_buffer: 8,
        write_deadline: Duration::from_mins(2),
        ..config()
    };
    let harness = Harness::start(config).await;
    let decode = Setup {
        pages: 5000,
        ..Setup::decode("decode-0", endless())
    };
    let _decode = harness.add(decode).await;
    let wide = || {
        with(by_ids(prompt_of(5), TOKENS), |sampling| {
            sampling.logprobs = Some(20);
        })
    };
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let stream = harness.client().generate(wide()).await.unwrap();
        slow.push(stream.into_inner());
    }
    // All that they will ever have to say waits for them.
    harness
        .until_counter("tokens_emitted", u64::from(SLOW * TOKENS))
        .await;
    let fast: Vec<_> = (0..12)
        .map(|_| {
            let mut client = harness.client();
            tokio::spawn(async move { Answer::of(&mut client, by_ids(prompt_of(5), 50)).await })
        })
        .collect();
    for answer in fast {
        assert_eq!(answer.await.unwrap().unwrap().whole().only().ids.len(), 50);
    }
    assert_eq!(harness.counter("slow_readers").await, 0);
    for mut stream in slow {
        let mut answer = Answer::default();
        let bytes = bytes_before_merging(&mut stream, &mut answer).await;
        assert!(
            bytes >= http2::STREAM_WINDOW as usize,
            "its window was full: {bytes} bytes"
        );
        // Late is not lost.
        while let Some(response) = soon("an event", stream.message()).await.unwrap() {
            answer.take(response.event.unwrap(), Instant::now());
        }
        assert_eq!(answer.whole().only().ids.len(), TOKENS as usize);
    }
}
