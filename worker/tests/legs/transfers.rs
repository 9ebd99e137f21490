//! Grants, commits and peers that are not as they should be.

use std::time::{Duration, Instant};

use baton_cluster::{Dialer, http2};
use baton_decode_worker::DecodeWorker;
use baton_kv_transfer::TransportChoice;
use baton_model_file::fixtures::TinyModel;
use baton_prefill_worker::PrefillWorker;
use baton_proto::domain::{Grant, PageSlot};
use baton_proto::ids::{Attempt, Incarnation, TransferId, TransferSecret};
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::transport::Channel;

use crate::support::gate::Gate;
use crate::support::link::{Link, Weather};
use crate::support::node::{Node, Wish};
use crate::support::router::{Ask, DecodeLeg, Got, PrefillLeg, local, reason, split};
use crate::support::{prompt, soon, until};

async fn pair(wish: Wish) -> (Node, Node) {
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
    (prefill, decode)
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_01_a_bad_grant_fails_with_its_own_reason_and_the_next_one_works() {
    let (prefill, decode) = pair(Wish::over(TransportChoice::Tcp)).await;
    let mut ask = Ask::greedy(prompt(1, 100), 6);
    let expected = local(&decode, &ask).await.unwrap();
    ask.salt = b"apart from the local run".to_vec();
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    first.scheduled().await.unwrap();

    let mut attempt = 0;
    // What prefill says of a spoiled grant, and the decode leg that stands behind it.
    let mut next = async |spoil: &dyn Fn(&mut Grant)| {
        attempt += 1;
        let ask = Ask {
            attempt,
            ..ask.clone()
        };
        let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
        let mut grant = second.granted().await.unwrap();
        spoil(&mut grant);
        first.grant(grant);
        let (failed, reason) = first.transfer_failed().await;
        assert_eq!(failed, Attempt(attempt));
        (reason.split(':').next().unwrap().to_owned(), second)
    };
    // Grants that the receiver does not know, and those that prefill sees through by itself.
    let unknown = next(&|grant| grant.transfer_id = TransferId([7; 16]))
        .await
        .0;
    let incarnation = next(&|grant| grant.incarnation = Incarnation(7)).await.0;
    let secret = next(&|grant| grant.secret = TransferSecret([7; 32]))
        .await
        .0;
    assert_eq!(
        [&*unknown, &*incarnation, &*secret],
        ["refused_unknown", "refused_incarnation", "refused_secret"]
    );
    assert_eq!(
        next(&|grant| grant.slots.truncate(3)).await.0,
        "wrong_pages"
    );
    let other_layout = next(&|grant| grant.fingerprint.page_size = 32).await.0;
    assert_eq!(other_layout, "fingerprint_mismatch");
    assert_eq!(
        next(&|grant| grant.endpoints.clear()).await.0,
        "no_endpoint"
    );
    // Pages that were not granted, or have changed hands since: refused before a byte moves, and
    // the grant is not used up.
    let strangers: [fn(&mut PageSlot); 2] = [|slot| slot.page += 1000, |slot| slot.generation += 1];
    for stranger in strangers {
        let refused = next(&|grant| grant.slots.iter_mut().for_each(stranger)).await;
        assert_eq!(refused.0, "refused_slots");
    }
    for (counter, count) in [
        ("refused_unknown", 1),
        ("refused_incarnation", 1),
        ("refused_secret", 1),
        ("refused_slots", 2),
    ] {
        let counted = decode.counter(&format!("kv_transfer_{counter}")).await;
        assert_eq!(counted, count, "{counter}");
    }

    let ask = Ask {
        attempt: 9,
        ..ask.clone()
    };
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    let grant = second.granted().await.unwrap();
    first.grant(grant.clone());
    let mut got = Got::default();
    first.finish(&mut got).await.unwrap();
    second.finish(&mut got).await.unwrap();
    let rest = &expected.choices[&0];
    assert_eq!(got.choices[&0], rest[rest.len() - got.choices[&0].len()..]);
    prefill.until_idle().await;
    decode.until_idle().await;

    // The grant has been used: it opens nothing any more.
    let again = Ask {
        salt: b"again".to_vec(),
        ..ask
    };
    let mut first = PrefillLeg::open(&prefill, &again, true).await.unwrap();
    first.scheduled().await.unwrap();
    first.grant(grant);
    let (_, reason) = first.transfer_failed().await;
    assert!(reason.starts_with("refused_closed"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_01_a_grant_past_its_lease_is_refused() {
    let lease = Duration::from_millis(100);
    let (prefill, decode) = pair(Wish {
        lease,
        ..Wish::over(TransportChoice::Tcp)
    })
    .await;
    let ask = Ask::greedy(prompt(1, 100), 6);
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    let grant = second.granted().await.unwrap();
    let status = second.finish(&mut Got::default()).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Aborted, "expired")
    );
    decode.until_idle().await;
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    first.scheduled().await.unwrap();
    first.grant(grant);
    let (_, reason) = first.transfer_failed().await;
    assert!(reason.starts_with("refused_"), "{reason}");
    drop(first);
    prefill.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_04_both_sides_going_at_once_leaves_nothing() {
    for transports in [TransportChoice::Tcp, TransportChoice::Shm] {
        let lease = Duration::from_millis(300);
        let wish = Wish {
            lease,
            prefix_cache: false,
            ..Wish::over(transports)
        };
        let decode = Node::start::<DecodeWorker>(Wish {
            name: "d",
            ..wish.clone()
        })
        .await;
        for round in 0..6 {
            let gate = Gate::closed();
            let wish = Wish {
                name: "p",
                gate: gate.clone(),
                ..wish.clone()
            };
            let prefill = Node::start::<PrefillWorker>(wish).await;
            let ask = Ask::greedy(prompt(round, 200), 6);
            let first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
            let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
            first.grant(second.granted().await.unwrap());
            gate.let_some(round % 4);
            gate.until_arrived(round % 4 + 1).await;
            if round % 2 == 0 {
                drop(second);
                prefill.kill();
            } else {
                prefill.kill();
                drop(second);
            }
            decode.until_idle().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_04_a_black_hole_ends_with_the_lease() {
    let lease = Duration::from_millis(300);
    let wish = Wish {
        lease,
        prefix_cache: false,
        ..Wish::over(TransportChoice::Tcp)
    };
    let (prefill, decode) = pair(wish).await;
    let ask = Ask::greedy(prompt(4, 200), 6);
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    let mut grant = second.granted().await.unwrap();
    let link = Link::in_the_way_of(&mut grant, Weather::Slow(512, Duration::from_millis(2))).await;
    first.grant(grant);
    first.scheduled().await.unwrap();
    until("some bytes", async || {
        decode.counter("kv_transfer_bytes_received").await > 0
    })
    .await;
    link.set(Weather::Frozen);
    let status = second.finish(&mut Got::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    decode.until_idle().await;
    let (attempt, reason) = first.transfer_failed().await;
    println!("{reason}");
    assert_eq!(attempt, Attempt(1));
    // The pages stayed pinned: another grant finishes the request.
    let ask = Ask { attempt: 2, ..ask };
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    first.grant(second.granted().await.unwrap());
    let mut got = Got::default();
    first.finish(&mut got).await.unwrap();
    let mut late = Got::default();
    second.finish(&mut late).await.unwrap();
    assert_eq!(late.ids(), local(&decode, &ask).await.unwrap().ids());
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_05_a_refusing_decode_worker_costs_prefill_nothing() {
    let (prefill, decode) = pair(Wish {
        pages: 16,
        ..Wish::over(TransportChoice::Tcp)
    })
    .await;
    // The decode worker is full.
    let big = Ask::greedy(prompt(1, 200), 6);
    let mut holder = DecodeLeg::open(&decode, &big, false).await.unwrap();
    holder.granted().await.unwrap();
    let ask = Ask::greedy(prompt(2, 100), 6);
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    first.scheduled().await.unwrap();
    let mut refused = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    let status = refused.granted().await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::ResourceExhausted, "no_room")
    );
    assert!(baton_proto::retry_after(&status).is_some());
    // Room appears: the same prefill leg goes on.
    drop(holder);
    decode.until_idle().await;
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    first.grant(second.granted().await.unwrap());
    let mut got = Got::default();
    first.finish(&mut got).await.unwrap();
    second.finish(&mut got).await.unwrap();
    assert_eq!(got.ids(), local(&decode, &ask).await.unwrap().ids());

    // A decode worker that drains, or finds the request bad, is no different.
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    first.scheduled().await.unwrap();
    let bad = Ask {
        id: "x".repeat(1000),
        ..ask.clone()
    };
    let status = local(&decode, &bad).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    // What it still has to do keeps it from ending.
    let small = Ask::greedy(prompt(3, 20), 6);
    let mut busy = DecodeLeg::open(&decode, &small, false).await.unwrap();
    busy.granted().await.unwrap();
    let incarnation = decode.info().incarnation.0;
    let drain = baton_proto::v1::DrainWorkerRequest { incarnation };
    decode.client().drain_worker(drain).await.unwrap();
    let mut refused = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    let status = refused.granted().await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Unavailable, "draining")
    );
    drop(busy);
    assert!(
        prefill.load().await.pages.live > 0,
        "the prompt waits for another decode worker"
    );
    drop(first);
    prefill.until_idle().await;

    // The router gives up between the legs: prefill's pages are back at once.
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    first.scheduled().await.unwrap();
    let started = Instant::now();
    drop(first);
    prefill.until_idle().await;
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_06_decode_is_free_at_once_when_prefills_abort() {
    let (prefill, decode) = pair(Wish {
        pages: 300,
        ..Wish::over(TransportChoice::Tcp)
    })
    .await;
    prefill.gate.close();
    let mut legs = Vec::new();
    for seed in 0..20 {
        let ask = Ask::greedy(prompt(seed, 200), 6);
        let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
        let grant = second.granted().await.unwrap();
        let first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
        first.grant(grant);
        legs.push((first, second));
    }
    assert!(decode.load().await.pages.granted >= 20 * 13);
    // Prefill aborts all but two; its closed streams reach decode through the router.
    let rest = legs.split_off(18);
    let started = Instant::now();
    drop(legs);
    until("free pages", async || {
        decode.load().await.pages.granted <= 2 * 13
    })
    .await;
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    prefill.gate.let_all();
    for (mut first, mut second) in rest {
        let mut got = Got::default();
        first.finish(&mut got).await.unwrap();
        second.finish(&mut got).await.unwrap();
    }
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_09_a_restarted_worker_at_the_same_address_is_another_one() {
    let wish = Wish {
        name: "p",
        ..Wish::over(TransportChoice::Tcp)
    };
    let decode = Node::start::<DecodeWorker>(Wish {
        name: "d",
        ..wish.clone()
    })
    .await;
    let old = Node::start::<PrefillWorker>(wish.clone()).await;
    let ask = Ask::greedy(prompt(9, 60), 4);
    let expected = split(&old, &decode, &ask).await.unwrap();
    let stale = ask.spec(&old);
    let listen = old.address;
    old.kill();
    let new = restart(Wish {
        listen,
        gate: Gate::open(),
        ..wish
    })
    .await;
    let first = baton_proto::legs::PrefillCommand::Start {
        spec: Box::new(stale),
        hand_off: true,
    };
    let mut leg = PrefillLeg::open_raw(&new, first.into()).await.unwrap();
    let status = leg.next().await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(reason(&status), "wrong_incarnation");
    for _ in 0..10 {
        assert_eq!(
            split(&new, &decode, &ask).await.unwrap().choices,
            expected.choices
        );
    }
}

/// The port of a killed node may take a moment to be free.
async fn restart(wish: Wish) -> Node {
    until("the old port", async || {
        tokio::net::TcpListener::bind(wish.listen).await.is_ok()
    })
    .await;
    Node::start::<PrefillWorker>(wish).await
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_11_unequal_workers_name_the_fields_in_which_they_differ() {
    let wish = Wish::over(TransportChoice::Tcp);
    let prefill = Node::start::<PrefillWorker>(Wish {
        name: "p",
        ..wish.clone()
    })
    .await;
    let other_model = TinyModel {
        seed: 2,
        ..TinyModel::default()
    };
    for (field, wish) in [
        (
            "page_size",
            Wish {
                page_size: 32,
                gate: Gate::open(),
                ..wish.clone()
            },
        ),
        (
            "weights_digest",
            Wish {
                model: other_model,
                gate: Gate::open(),
                ..wish.clone()
            },
        ),
    ] {
        let decode = Node::start::<DecodeWorker>(Wish { name: "d", ..wish }).await;
        let ask = Ask::greedy(prompt(1, 100), 6);
        let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
        let grant = second.granted().await.unwrap();
        let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
        first.scheduled().await.unwrap();
        first.grant(grant);
        let (_, reason) = first.transfer_failed().await;
        assert!(
            reason.starts_with("fingerprint") && reason.contains(field),
            "{reason}"
        );
        // A router that paired by the other's fingerprint is refused before anything is queued.
        let mut spec = ask.spec(&prefill);
        spec.fingerprint_digest = decode.info().fingerprint.digest();
        let start = baton_proto::legs::PrefillCommand::Start {
            spec: Box::new(spec),
            hand_off: true,
        };
        let mut leg = PrefillLeg::open_raw(&prefill, start.into()).await.unwrap();
        let status = leg.next().await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(
            crate::support::router::reason(&status),
            "fingerprint_mismatch"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_12_the_request_id_is_no_transfer_key() {
    let (prefill, decode) = pair(Wish::over(TransportChoice::Shm)).await;
    let ids = ["with spaces", "日本 🙂", "same", "same", &"x".repeat(128)].map(str::to_owned);
    let asks: Vec<Ask> = ids
        .into_iter()
        .enumerate()
        .map(|(seed, id)| Ask {
            id,
            ..Ask::greedy(prompt(seed as u64, 60), 8)
        })
        .collect();
    let got = asks.iter().map(|ask| split(&prefill, &decode, ask));
    let got = futures::future::join_all(got).await;
    for (ask, got) in asks.iter().zip(got) {
        assert_eq!(
            got.unwrap().ids(),
            local(&decode, ask).await.unwrap().ids(),
            "{}",
            ask.id
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_15_a_slow_prefill_is_not_charged_to_the_transfer() {
    for transports in [TransportChoice::Tcp, TransportChoice::Shm] {
        let lease = Duration::from_millis(400);
        let (prefill, decode) = pair(Wish {
            lease,
            ..Wish::over(transports)
        })
        .await;
        let ask = Ask::greedy(prompt(15, 100), 6);
        prefill.gate.close();
        let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
        prefill.gate.until_arrived(1).await;
        let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
        first.grant(second.granted().await.unwrap());
        // Two of the four steps take two leases each.
        for step in 1..=2 {
            tokio::time::sleep(2 * lease).await;
            prefill.gate.let_some(1);
            prefill.gate.until_arrived(step + 1).await;
        }
        prefill.gate.let_all();
        let mut got = Got::default();
        first.finish(&mut got).await.unwrap();
        second.finish(&mut got).await.unwrap();
        assert_eq!(got.ids(), local(&decode, &ask).await.unwrap().ids());
        assert_eq!(decode.counter("kv_transfer_opened").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_16_pages_that_are_being_read_are_not_reused() {
    let lease = Duration::from_millis(200);
    let wish = Wish {
        lease,
        pages: 32,
        ..Wish::over(TransportChoice::Tcp)
    };
    let (prefill, decode) = pair(wish).await;
    let ask = Ask::greedy(prompt(16, 250), 6);
    let expected = local(&decode, &ask).await.unwrap();
    let ask = Ask {
        salt: b"apart".to_vec(),
        ..ask
    };
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    let mut grant = second.granted().await.unwrap();
    // 64 KiB in portions of 1 KiB take about four leases.
    let weather = Weather::Slow(1024, Duration::from_millis(10));
    let _link = Link::in_the_way_of(&mut grant, weather).await;
    first.grant(grant);
    let mut got = Got::default();
    let pressure = async {
        for seed in 0..200 {
            let other = Ask::greedy(prompt(1000 + seed, 100), 1);
            // No room is as good as a prompt that came through: nothing may be taken from the reader.
            let _ = split(&prefill, &decode, &other).await;
        }
    };
    let transfer = async {
        first.finish(&mut got).await.unwrap();
        second.finish(&mut got).await.unwrap();
    };
    tokio::join!(pressure, transfer);
    assert_eq!(got.choices, expected.choices);
    let report = got.prefill.unwrap();
    assert!(report.transfer > 2 * lease, "{report:?}");
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_24_a_dying_peer_harms_only_its_own_requests() {
    for transports in [TransportChoice::Tcp, TransportChoice::Shm] {
        let wish = Wish::over(transports);
        let decode = Node::start::<DecodeWorker>(Wish {
            name: "d",
            ..wish.clone()
        })
        .await;
        for round in 0..8 {
            let gate = Gate::closed();
            let wish = Wish {
                name: "p",
                gate: gate.clone(),
                ..wish.clone()
            };
            let prefill = Node::start::<PrefillWorker>(wish.clone()).await;
            let ask = Ask::greedy(prompt(round, 200), 6);
            let first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
            let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
            first.grant(second.granted().await.unwrap());
            gate.let_some(2);
            gate.until_arrived(3).await;
            prefill.kill();
            let status = second.finish(&mut Got::default()).await.unwrap_err();
            assert_eq!(status.code(), Code::Aborted, "{status:?}");
            decode.until_idle().await;
            let again = Node::start::<PrefillWorker>(Wish {
                gate: Gate::open(),
                ..wish
            })
            .await;
            let got = split(&again, &decode, &ask).await.unwrap();
            assert_eq!(got.ids(), local(&decode, &ask).await.unwrap().ids());
        }
    }
}

/// Legs that a router of its own holds: a prefill leg without grant, a decode leg without pages.
async fn hold_legs(prefill: &Node, decode: &Node, channels: [Channel; 2], runtime: &Runtime) {
    let ask = Ask::greedy(prompt(5, 100), 6);
    let [to_prefill, to_decode] = channels;
    let (start, reserve) = (
        ask.prefill_start(prefill, true),
        ask.decode_start(decode, false),
    );
    let (tell, held) = tokio::sync::oneshot::channel();
    runtime.spawn(async move {
        let mut first = PrefillLeg::open_over(to_prefill, start)
            .await
            .expect("a prefill leg");
        let mut second = DecodeLeg::open_over(to_decode, reserve)
            .await
            .expect("a decode leg");
        first.scheduled().await.expect("a scheduled prompt");
        second.granted().await.expect("a grant");
        let _ = tell.send(());
        std::future::pending::<()>().await;
        drop((first, second));
    });
    soon("the router's legs", held).await.expect("both legs");
    assert!(prefill.load().await.pages.live > 0);
    assert!(decode.load().await.pages.granted > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_05_a_router_that_dies_between_the_legs_leaves_nothing() {
    let (prefill, decode) = pair(Wish::over(TransportChoice::Tcp)).await;
    let runtime = Runtime::new().unwrap();
    let channels = {
        let _inside = runtime.enter();
        [&prefill, &decode].map(|node| Dialer::plain().channel(&node.address.to_string()).unwrap())
    };
    hold_legs(&prefill, &decode, channels, &runtime).await;
    let started = Instant::now();
    runtime.shutdown_background();
    prefill.until_idle().await;
    decode.until_idle().await;
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_05_a_router_that_falls_silent_between_the_legs_leaves_nothing() {
    let (prefill, decode) = pair(Wish::over(TransportChoice::Tcp)).await;
    let runtime = Runtime::new().unwrap();
    let to_prefill = Link::to(prefill.address.to_string(), Weather::Clear).await;
    let to_decode = Link::to(decode.address.to_string(), Weather::Clear).await;
    let channels = {
        let _inside = runtime.enter();
        [&to_prefill, &to_decode].map(|link| Dialer::plain().channel(link.address()).unwrap())
    };
    hold_legs(&prefill, &decode, channels, &runtime).await;
    let started = Instant::now();
    to_prefill.set(Weather::Frozen);
    to_decode.set(Weather::Frozen);
    prefill.until_idle().await;
    decode.until_idle().await;
    // A ping's interval and its time limit, and some room.
    let elapsed = started.elapsed();
    assert!(
        elapsed < http2::PING_INTERVAL + 2 * http2::PING_TIMEOUT,
        "{elapsed:?}"
    );
    runtime.shutdown_background();
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_23_equal_prompts_at_the_same_time_do_not_disturb_each_other() {
    let (prefill, decode) = pair(Wish {
        pages: 300,
        ..Wish::over(TransportChoice::Shm)
    })
    .await;
    let alone = Node::start::<DecodeWorker>(Wish {
        prefix_cache: false,
        ..Wish::default()
    })
    .await;
    let ask = |seed: u64, prompt_seed: u64| {
        let mut ask = Ask::greedy(prompt(prompt_seed, 70), 12);
        ask.params.choices = 2;
        ask.params.temperature = 6.0;
        ask.params.seed = seed;
        ask
    };
    let asks = [ask(1, 1), ask(2, 2), ask(3, 1)];
    let mut long = ask(4, 1);
    long.prompt = vec![5; 3000];
    let refused = split(&prefill, &decode, &long);
    let got = futures::future::join_all(asks.iter().map(|ask| split(&prefill, &decode, ask)));
    let (refused, got) = tokio::join!(refused, got);
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    for (ask, got) in asks.iter().zip(got) {
        let (got, expected) = (got.unwrap(), local(&alone, ask).await.unwrap());
        assert_eq!(got.choices.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(got.choices, expected.choices);
    }
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sec_02_a_grant_for_a_strange_host_fails_and_costs_only_itself() {
    let (prefill, decode) = pair(Wish::over(TransportChoice::Tcp)).await;
    let ask = Ask::greedy(prompt(2, 100), 6);
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    first.scheduled().await.unwrap();
    // Link-local, as metadata services are, but an address where nobody is.
    let strange = [
        "169.254.0.1:80",
        "0.0.0.0:1",
        "224.0.0.1:7000",
        "127.0.0.1:0",
        "[::]:7",
    ];
    for (attempt, address) in (1..).zip(strange) {
        let ask = Ask {
            attempt,
            ..ask.clone()
        };
        let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
        let mut grant = second.granted().await.unwrap();
        grant.endpoints[0].address = address.to_owned();
        let started = Instant::now();
        first.grant(grant);
        let (failed, reason) = first.transfer_failed().await;
        assert_eq!(failed, Attempt(attempt));
        assert!(reason.starts_with("no_endpoint"), "{reason}");
        assert!(reason.contains(address), "{reason}");
        // Refused, not tried: less than the time to connect.
        let elapsed = started.elapsed();
        assert!(elapsed < Duration::from_secs(2), "{address}: {elapsed:?}");
    }
    let ask = Ask { attempt: 9, ..ask };
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    first.grant(second.granted().await.unwrap());
    let mut got = Got::default();
    first.finish(&mut got).await.unwrap();
    let mut late = Got::default();
    second.finish(&mut late).await.unwrap();
    assert_eq!(late.ids(), local(&decode, &ask).await.unwrap().ids());
    prefill.until_idle().await;
    decode.until_idle().await;
}
