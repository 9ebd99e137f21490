//! Signs of life: what a leg says when there is nothing else to say, and when it keeps silent.

use std::time::Duration;

use baton_decode_worker::DecodeWorker;
use baton_kv_transfer::TransportChoice;
use baton_prefill_worker::PrefillWorker;
use baton_proto::legs::{DecodeEvent, PrefillEvent};
use baton_proto::v1::GetWorkerRequest;
use tonic::Code;

use crate::support::node::{Node, Wish};
use crate::support::router::{Ask, DecodeLeg, Got, PrefillLeg};
use crate::support::{prompt, soon};

/// Longer than a leg may keep silent that is well.
const SILENCE: Duration = Duration::from_millis(1500);

#[tokio::test(flavor = "multi_thread")]
async fn xfr_15_every_chunk_is_told_on_both_kinds_of_leg() {
    let wish = Wish::over(TransportChoice::Tcp);
    let prefill = Node::start::<PrefillWorker>(wish.clone()).await;
    let decode = Node::start::<DecodeWorker>(Wish {
        gate: crate::support::gate::Gate::open(),
        ..wish
    })
    .await;
    // Four chunks of at most 32 tokens; the last one's news is the first token.
    let ask = Ask::greedy(prompt(1, 100), 4);
    let mut leg = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    let mut chunks = Vec::new();
    loop {
        match leg.next_sign().await.unwrap() {
            Some(PrefillEvent::ChunkDone { computed_tokens }) => chunks.push(computed_tokens),
            Some(PrefillEvent::FirstToken(_)) => break,
            Some(PrefillEvent::Scheduled(_) | PrefillEvent::Alive) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(chunks, [32, 64, 96]);
    let mut leg = DecodeLeg::open(&decode, &ask, true).await.unwrap();
    let mut chunks = Vec::new();
    loop {
        match leg.next_sign().await.unwrap() {
            Some(DecodeEvent::ChunkDone { computed_tokens }) => chunks.push(computed_tokens),
            Some(DecodeEvent::Token(_)) => break,
            Some(DecodeEvent::Scheduled(_) | DecodeEvent::Alive) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(chunks, [32, 64, 96]);
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_15_legs_that_wait_say_so() {
    let wish = Wish {
        pages: 16,
        ..Wish::over(TransportChoice::Tcp)
    };
    let prefill = Node::start::<PrefillWorker>(wish.clone()).await;
    let decode = Node::start::<DecodeWorker>(Wish {
        gate: crate::support::gate::Gate::open(),
        ..wish
    })
    .await;
    let ask = |seed| Ask::greedy(prompt(seed, 160), 4);
    // Its pages wait for a grant, so that another prompt waits for pages.
    let mut first = PrefillLeg::open(&prefill, &ask(1), true).await.unwrap();
    first.scheduled().await.unwrap();
    let mut second = PrefillLeg::open(&prefill, &ask(2), true).await.unwrap();
    for _ in 0..2 {
        let sign = second.next_sign().await.unwrap();
        assert!(matches!(sign, Some(PrefillEvent::Alive)), "{sign:?}");
    }
    let mut signs = 0;
    while signs < 2 {
        match first.next_sign().await.unwrap() {
            Some(PrefillEvent::Alive) => signs += 1,
            Some(PrefillEvent::ChunkDone { .. } | PrefillEvent::FirstToken(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    // Granted pages that nobody sends to.
    let mut reserved = DecodeLeg::open(&decode, &ask(1), false).await.unwrap();
    let grant = reserved.granted().await.unwrap();
    for _ in 0..2 {
        let sign = reserved.next_sign().await.unwrap();
        assert!(matches!(sign, Some(DecodeEvent::Alive)), "{sign:?}");
    }
    first.grant(grant);
    let mut got = Got::default();
    first.finish(&mut got).await.unwrap();
    reserved.finish(&mut got).await.unwrap();
    second.scheduled().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rte_06_a_worker_whose_step_is_stuck_keeps_silent() {
    let decode = Node::start::<DecodeWorker>(Wish::default()).await;
    decode.gate.close();
    let ask = Ask::greedy(prompt(1, 50), 4);
    let mut running = DecodeLeg::open(&decode, &ask, true).await.unwrap();
    decode.gate.until_arrived(1).await;
    // Not even a request that the step loop has not looked at is said to wait.
    let mut waiting = DecodeLeg::open(&decode, &ask, true).await.unwrap();
    for leg in [&mut running, &mut waiting] {
        let silence = async {
            while let Ok(sign) = tokio::time::timeout(SILENCE, leg.next_sign()).await {
                assert!(sign.unwrap().is_some());
            }
        };
        soon("silence", silence).await;
    }
    let mut client = decode.client();
    let refused = soon("a refusal", async {
        loop {
            match client.get_worker(GetWorkerRequest {}).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(status) => return status,
            }
        }
    })
    .await;
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("stood still"), "{refused}");
    decode.gate.let_all();
    for leg in [&mut running, &mut waiting] {
        leg.finish(&mut Got::default()).await.unwrap();
    }
    decode.until_idle().await;
}
