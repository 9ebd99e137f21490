//! Cancel in every phase gives everything back, soon.

use std::time::Duration;

use baton_decode_worker::DecodeWorker;
use baton_kv_transfer::TransportChoice;
use baton_prefill_worker::PrefillWorker;
use tonic::Code;

use crate::support::gate::Gate;
use crate::support::link::{Link, Weather};
use crate::support::node::{Node, Wish};
use crate::support::router::{Ask, DecodeLeg, Got, PrefillLeg, local, reason, split};
use crate::support::{prompt, until};

#[tokio::test(flavor = "multi_thread")]
async fn str_01_a_caller_that_leaves_stops_its_sequence() {
    let wish = Wish {
        prefix_cache: false,
        ..Wish::over(TransportChoice::Shm)
    };
    let prefill = Node::start::<PrefillWorker>(Wish {
        name: "p",
        ..wish.clone()
    })
    .await;
    let gate = Gate::open();
    let decode = Node::start::<DecodeWorker>(Wish {
        name: "d",
        gate,
        ..wish
    })
    .await;
    for round in 0..100 {
        let ask = Ask::greedy(prompt(round, 20), 1500);
        let is_split = round % 4 == 0;
        let mut got = Got::default();
        // Three tokens, or one from prefill and up to three from here; then the next step waits.
        decode.gate.close();
        decode.gate.let_some(3);
        let mut leg = if is_split {
            let (mut first, second) = granted(&prefill, &decode, &ask).await;
            first.finish(&mut got).await.unwrap();
            second
        } else {
            DecodeLeg::open(&decode, &ask, true).await.unwrap()
        };
        while got.choices.get(&0).is_none_or(|tokens| tokens.len() < 3) {
            leg.step(&mut got).await.unwrap();
        }
        decode.gate.hold().await;
        // A step is under way when the caller leaves; it is the sequence's last.
        drop(leg);
        until("the cancel", async || {
            decode.counter("legs_cancelled").await == round + 1
        })
        .await;
        let under_way = decode.gate.arrived();
        decode.gate.let_all();
        decode.until_idle().await;
        assert_eq!(decode.gate.arrived(), under_way, "round {round}");
        assert_eq!(decode.load().await.pages.free, 128);
    }
    assert_eq!(decode.counter("cancelled").await, 100);
    prefill.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn str_01_a_cancelled_choice_ends_alone() {
    let decode = Node::start::<DecodeWorker>(Wish::default()).await;
    let mut ask = Ask::greedy(prompt(1, 20), 300);
    ask.params.choices = 2;
    ask.params.temperature = 1.0;
    let expected = local(&decode, &ask).await.unwrap();
    // A step begins when the one before has been read, so that the cancel is never far behind.
    decode.gate.close();
    let mut leg = DecodeLeg::open(&decode, &ask, true).await.unwrap();
    let mut got = Got::default();
    let (mut read, mut cancelled) = (0, false);
    decode.gate.let_some(1);
    while !leg.step(&mut got).await.unwrap() {
        let tokens = got.choices.get(&1).map_or(0, Vec::len);
        if tokens > read {
            read = tokens;
            decode.gate.let_some(1);
        }
        if tokens >= 5 && !cancelled {
            cancelled = true;
            leg.cancel(0);
        }
    }
    assert_eq!(got.choices[&1], expected.choices[&1]);
    let cut = &got.choices[&0];
    assert!(cut.len() < 300, "choice 0 went on to its end");
    assert_eq!(cut[..], expected.choices[&0][..cut.len()]);
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn str_02_prompts_of_callers_that_left_are_not_computed() {
    let gate = Gate::closed();
    let wish = Wish {
        pages: 600,
        gate: gate.clone(),
        ..Wish::default()
    };
    let prefill = Node::start::<PrefillWorker>(wish).await;
    let mut legs = Vec::new();
    for round in 0..10 {
        // Ten chunks each.
        let ask = Ask::greedy(prompt(round, 320), 8);
        legs.push(PrefillLeg::open(&prefill, &ask, true).await.unwrap());
    }
    gate.until_arrived(1).await;
    gate.let_some(2);
    gate.until_arrived(3).await;
    drop(legs);
    let short = Ask::greedy(prompt(99, 10), 1);
    let mut leg = PrefillLeg::open(&prefill, &short, false).await.unwrap();
    // The router's cancels have arrived when their legs have ended.
    until("the cancels", async || {
        prefill.counter("legs_cancelled").await >= 10
    })
    .await;
    gate.let_all();
    leg.scheduled().await.unwrap();
    leg.finish(&mut Got::default()).await.unwrap();
    // Three steps before the cancel, at most one that was under way, one for the short prompt.
    assert!(gate.arrived() <= 5, "{} steps", gate.arrived());
    prefill.until_idle().await;
}

/// Where a request is when it is cancelled.
#[derive(Debug, Clone, Copy)]
enum Phase {
    Queued,
    Prefilling,
    Granted,
    Transferring,
    Computed,
    Landed,
    Decoding,
    Preempted,
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_13_cancel_in_every_phase_returns_to_the_baseline() {
    for transports in [TransportChoice::Tcp, TransportChoice::Shm] {
        let wish = Wish {
            pages: 40,
            prefix_cache: false,
            ..Wish::over(transports)
        };
        let prefill = Node::start::<PrefillWorker>(Wish {
            name: "p",
            ..wish.clone()
        })
        .await;
        let gate = Gate::open();
        let decode = Node::start::<DecodeWorker>(Wish {
            name: "d",
            gate,
            ..wish
        })
        .await;
        for round in 0..4 {
            for phase in [
                Phase::Queued,
                Phase::Prefilling,
                Phase::Granted,
                Phase::Transferring,
                Phase::Computed,
                Phase::Landed,
                Phase::Decoding,
                Phase::Preempted,
            ] {
                println!("{transports:?} round {round} {phase:?}");
                cancel_in(phase, &prefill, &decode).await;
                prefill.gate.let_all();
                decode.gate.let_all();
                prefill.until_idle().await;
                decode.until_idle().await;
                assert_eq!(prefill.load().await.pages.free, 40, "{phase:?}");
                assert_eq!(decode.load().await.pages.free, 40, "{phase:?}");
            }
        }
        // And both still work.
        let ask = Ask::greedy(prompt(3, 60), 5);
        let got = split(&prefill, &decode, &ask).await.unwrap();
        assert_eq!(got.ids(), local(&decode, &ask).await.unwrap().ids());
    }
}

async fn cancel_in(phase: Phase, prefill: &Node, decode: &Node) {
    let ask = Ask::greedy(prompt(7, 100), 200);
    let arrived = prefill.gate.arrived();
    match phase {
        Phase::Queued => {
            prefill.gate.close();
            let busy = PrefillLeg::open(prefill, &ask, true).await.unwrap();
            prefill.gate.until_arrived(arrived + 1).await;
            let leg = PrefillLeg::open(prefill, &ask, true).await.unwrap();
            drop((busy, leg));
        }
        Phase::Prefilling => {
            prefill.gate.close();
            let mut leg = PrefillLeg::open(prefill, &ask, true).await.unwrap();
            prefill.gate.let_some(1);
            leg.scheduled().await.unwrap();
            prefill.gate.until_arrived(arrived + 2).await;
        }
        Phase::Granted => {
            let mut second = DecodeLeg::open(decode, &ask, false).await.unwrap();
            second.granted().await.unwrap();
        }
        Phase::Transferring => {
            prefill.gate.close();
            let (first, second) = granted(prefill, decode, &ask).await;
            prefill.gate.let_some(2);
            prefill.gate.until_arrived(arrived + 3).await;
            drop((first, second));
        }
        Phase::Computed => {
            // No grant ever comes.
            let mut leg = PrefillLeg::open(prefill, &ask, true).await.unwrap();
            leg.scheduled().await.unwrap();
            let first = leg.next().await.unwrap();
            assert!(first.is_some(), "a first token");
        }
        Phase::Landed => {
            let steps = decode.gate.arrived();
            decode.gate.close();
            let (mut first, second) = granted(prefill, decode, &ask).await;
            first.finish(&mut Got::default()).await.unwrap();
            decode.gate.until_arrived(steps + 1).await;
            drop(second);
        }
        Phase::Decoding => {
            let (mut first, mut second) = granted(prefill, decode, &ask).await;
            let mut got = Got::default();
            first.finish(&mut got).await.unwrap();
            while got.choices[&0].len() < 5 {
                second.step(&mut got).await.unwrap();
            }
        }
        Phase::Preempted => {
            // Four sequences that grow to 30 pages each do not fit into 40.
            let before = decode.counter("preemptions").await;
            let started = decode.counter("legs_started").await;
            decode.gate.close();
            let mut legs = Vec::new();
            for seed in 0..4 {
                let ask = Ask::greedy(prompt(seed, 80), 400);
                legs.push(DecodeLeg::open(decode, &ask, true).await.unwrap());
            }
            until("four legs", async || {
                decode.counter("legs_started").await == started + 4
            })
            .await;
            decode.gate.let_all();
            let readers = legs.into_iter().map(|mut leg| async move {
                let _ = leg.finish(&mut Got::default()).await;
            });
            let preempted = until("a preemption", async || {
                decode.counter("preemptions").await > before
            });
            tokio::select! {
                () = preempted => {}
                _ = futures::future::join_all(readers) => panic!("all ended without preemption"),
            }
        }
    }
}

async fn granted(prefill: &Node, decode: &Node, ask: &Ask) -> (PrefillLeg, DecodeLeg) {
    let first = PrefillLeg::open(prefill, ask, true).await.unwrap();
    let mut second = DecodeLeg::open(decode, ask, false).await.unwrap();
    // A grant may arrive at any time, also before the pages are known.
    first.grant(second.granted().await.unwrap());
    (first, second)
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_02_pages_of_a_cancelled_transfer_are_fenced_before_they_are_used_again() {
    for transports in [TransportChoice::Tcp, TransportChoice::Shm] {
        let wish = Wish {
            pages: 12,
            prefix_cache: false,
            ..Wish::over(transports)
        };
        let prefill = Node::start::<PrefillWorker>(Wish {
            name: "p",
            ..wish.clone()
        })
        .await;
        let gate = Gate::open();
        let decode = Node::start::<DecodeWorker>(Wish {
            name: "d",
            gate,
            ..wish
        })
        .await;
        let alone = Node::start::<DecodeWorker>(Wish::default()).await;
        let old = Ask::greedy(prompt(1, 150), 8);
        let new = Ask::greedy(prompt(2, 150), 8);
        let expected = local(&alone, &new).await.unwrap();
        for round in 0..5 {
            // The old transfer is half way when its decode leg is dropped; its prefill goes on.
            let arrived = prefill.gate.arrived();
            prefill.gate.close();
            let (first, second) = granted(&prefill, &decode, &old).await;
            prefill.gate.let_some(2);
            prefill.gate.until_arrived(arrived + 3).await;
            drop(second);
            // The new prompt needs the very same pages; it gets them once they are fenced.
            let mut leg = retry_reserve(&decode, &new, true).await;
            prefill.gate.let_all();
            let mut got = Got::default();
            leg.finish(&mut got).await.unwrap();
            assert_eq!(
                got.choices, expected.choices,
                "{transports:?} round {round}"
            );
            drop(first);
            prefill.until_idle().await;
            decode.until_idle().await;
        }
    }
}

/// Opens a decode leg as soon as there is room.
async fn retry_reserve(decode: &Node, ask: &Ask, local_prefill: bool) -> DecodeLeg {
    until("the pages to be fenced", async || {
        decode.load().await.pages.free >= 10
    })
    .await;
    DecodeLeg::open(decode, ask, local_prefill).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_02_a_frozen_sender_holds_nothing_over_tcp() {
    let wish = Wish {
        pages: 12,
        prefix_cache: false,
        ..Wish::over(TransportChoice::Tcp)
    };
    let prefill = Node::start::<PrefillWorker>(Wish {
        name: "p",
        ..wish.clone()
    })
    .await;
    let gate = Gate::open();
    let decode = Node::start::<DecodeWorker>(Wish {
        name: "d",
        gate,
        ..wish
    })
    .await;
    let old = Ask::greedy(prompt(1, 150), 8);
    let mut first = PrefillLeg::open(&prefill, &old, true).await.unwrap();
    let mut second = DecodeLeg::open(&decode, &old, false).await.unwrap();
    let mut grant = second.granted().await.unwrap();
    let link = Link::in_the_way_of(&mut grant, Weather::Slow(512, Duration::from_millis(1))).await;
    first.grant(grant);
    first.scheduled().await.unwrap();
    until("some bytes", async || {
        decode.counter("kv_transfer_bytes_received").await > 0
    })
    .await;
    link.set(Weather::Frozen);
    drop(second);
    decode.until_idle().await;
    let new = Ask::greedy(prompt(2, 150), 8);
    let expected = local(&decode, &new).await.unwrap();
    // What was under way arrives now, and is dropped.
    link.set(Weather::Clear);
    assert_eq!(
        local(&decode, &new).await.unwrap().choices,
        expected.choices
    );
    drop(first);
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_leg_in_every_phase() {
    let wish = Wish {
        prefix_cache: false,
        ..Wish::default()
    };
    let prefill = Node::start::<PrefillWorker>(Wish {
        name: "p",
        ..wish.clone()
    })
    .await;
    let gate = Gate::open();
    let decode = Node::start::<DecodeWorker>(Wish {
        name: "d",
        gate,
        ..wish
    })
    .await;
    let ask = Ask {
        time: Duration::from_millis(150),
        ..Ask::greedy(prompt(1, 100), 1500)
    };
    let late = |status: tonic::Status| {
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        assert_eq!(reason(&status), "deadline");
    };
    // Prefill: computed, and no grant comes. Decode: granted, and no pages come.
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    late(first.finish(&mut Got::default()).await.unwrap_err());
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    second.granted().await.unwrap();
    late(second.finish(&mut Got::default()).await.unwrap_err());
    // Both in the middle of a step that takes too long.
    prefill.gate.close();
    decode.gate.close();
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    late(first.finish(&mut Got::default()).await.unwrap_err());
    let mut second = DecodeLeg::open(&decode, &ask, true).await.unwrap();
    late(second.finish(&mut Got::default()).await.unwrap_err());
    prefill.gate.let_all();
    decode.gate.let_all();
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn str_07_a_reader_that_takes_nothing_holds_no_pages_and_nobody_up() {
    let wish = Wish {
        write_deadline: Duration::from_millis(300),
        ..Wish::default()
    };
    let decode = Node::start::<DecodeWorker>(wish).await;
    // Each token comes with twenty log-probabilities, more than the windows hold.
    let mut slow_ask = Ask::greedy(prompt(1, 20), 1900);
    slow_ask.params.logprobs = Some(20);
    let mut slow = DecodeLeg::open(&decode, &slow_ask, true).await.unwrap();
    let fast_ask = Ask::greedy(prompt(2, 20), 1000);
    let fast = local(&decode, &fast_ask).await.unwrap();
    assert_eq!(fast.ids()[0].len(), 1000);
    until("the pages of the slow one", async || {
        decode.load().await.pages.live == 0
    })
    .await;
    let mut got = Got::default();
    let status = slow.finish(&mut got).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Aborted, "slow_reader")
    );
    let tokens = got.choices[&0].len();
    assert!(
        (64..1900).contains(&tokens),
        "{tokens} tokens were kept for it"
    );
    assert_eq!(
        got.choices[&0],
        local(&decode, &slow_ask).await.unwrap().choices[&0][..tokens]
    );
    decode.until_idle().await;
}
