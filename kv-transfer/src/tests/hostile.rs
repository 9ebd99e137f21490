//! Garbage and greed at the door of a receiver: it refuses, counts, and goes on serving.

use std::time::Duration;

use baton_proto::domain::Transport;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use super::raw::{RawSender, hello, script};
use super::support::*;
use super::whole::BOTH;
use crate::error::{CloseReason, Refusal, TransferError};
use crate::frame::{FRAME_VERSION, Frame};
use crate::{SenderOptions, TransportChoice, host_id};

/// A good transfer goes through.
async fn still_serves(landed: &ReceivingSide, sent: &SendingSide) {
    let (grant, mut incoming) = landed.open(&[14, 15], 0);
    let progress = sent.progress(32, &[0, 1]);
    advance_all(&progress, &sent.layout, 32);
    within(
        "commit",
        sent.sender.begin(grant, progress).commit(Vec::new()),
    )
    .await
    .expect("commit");
    committed(within("outcome", incoming.outcome()).await);
    assert_same(sent, landed, &[0, 1], &[14, 15], 0);
}

#[tokio::test]
async fn xfr_24_garbage_at_any_moment_is_one_attempts_failure() {
    let seed = 2424;
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for (choice, transport) in BOTH {
        let landed = receiving(layout(16), choice).await;
        let sent = sending(layout(16), choice, 5);
        for round in 0..60 {
            let (grant, mut incoming) = landed.open(&[1, 2, 3], 0);
            let words = script(&sent, &grant, &[1, 2, 3], 48, landed.layout);
            let mut garbage = vec![0; random.random_range(1..4000)];
            random.fill_bytes(&mut garbage);
            if random.random() && garbage.len() > 8 {
                garbage[4] = FRAME_VERSION;
                garbage[6..8].fill(0);
            }
            let mut raw = RawSender::connect(&grant, transport).await;
            let stage = round % 4;
            if stage == 0 {
                raw.say_bytes(&garbage).await;
                continue;
            }
            if stage == 1 {
                let mut hello = Frame::Hello(Box::new(hello(&grant, &host_id()))).encode(0);
                let at = random.random_range(8..hello.len());
                hello[at] ^= 1 << random.random_range(0..8);
                hello.truncate(random.random_range(0..=hello.len()));
                raw.say_bytes(&hello).await;
                continue;
            }
            raw.say(&Frame::Hello(Box::new(hello(&grant, &host_id()))))
                .await;
            raw.welcomed(landed.layout.region_bytes()).await;
            raw.open(words.manifest).await;
            raw.pages(&words.runs[0]).await;
            if stage == 3 {
                // In the middle of a frame.
                let run = &words.runs[1];
                let frame = Frame::Pages(run.head.clone()).encode(run.bytes[0].len());
                raw.say_bytes(&frame[..random.random_range(1..frame.len())])
                    .await;
            }
            raw.say_bytes(&garbage).await;
            drop(raw);
            let error = failure(within("outcome", incoming.outcome()).await);
            assert!(!error.name().is_empty());
            within("fence", incoming.fenced()).await;
        }
        still_serves(&landed, &sent).await;
    }
}

#[tokio::test]
async fn xfr_24_fifty_peers_die_during_their_transfer() {
    for (choice, transport) in BOTH {
        let landed = receiving(layout(16), choice).await;
        let sent = sending(layout(16), choice, 5);
        for round in 0..50 {
            let (grant, mut incoming) = landed.open(&[1, 2, 3], 0);
            let words = script(&sent, &grant, &[1, 2, 3], 48, landed.layout);
            let mut raw =
                RawSender::admitted(&grant, transport, landed.layout.region_bytes()).await;
            raw.open(words.manifest).await;
            for run in &words.runs[..round % words.runs.len()] {
                raw.pages(run).await;
            }
            drop(raw);
            let outcome = failure(within("outcome", incoming.outcome()).await);
            assert_eq!(outcome.name(), "connection_lost");
            within("fence", incoming.fenced()).await;
            still_serves(&landed, &sent).await;
        }
        assert_eq!(landed.counter("failed_connection_lost"), 50);
    }
}

#[tokio::test]
async fn sec_02_greedy_frames_are_refused_by_size() {
    for (choice, transport) in BOTH {
        let landed = receiving(layout(16), choice).await;
        let sent = sending(layout(16), choice, 5);
        // A Hello of 4 GiB.
        let (grant, _incoming) = landed.open(&[1], 0);
        let mut raw = RawSender::connect(&grant, transport).await;
        raw.say_bytes(&[0xff, 0xff, 0xff, 0xff, FRAME_VERSION, 1, 0, 0])
            .await;
        assert_eq!(raw.hear().await, Some(Frame::Refused(Refusal::Malformed)));
        assert_eq!(landed.counter("refused_malformed"), 1);
        // Layer 10^6; position 2^32 - 2; a page of another attempt.
        for (layer, position, page) in [(1_000_000, 0, 1), (0, u32::MAX - 1, 1), (0, 0, 9)] {
            let (grant, mut incoming) = landed.open(&[1], 0);
            let words = script(&sent, &grant, &[1], 16, landed.layout);
            let mut raw =
                RawSender::admitted(&grant, transport, landed.layout.region_bytes()).await;
            raw.open(words.manifest).await;
            let mut head = words.runs[0].head.clone();
            (head.layer, head.position, head.page) = (layer, position, page);
            let payload = if transport == Transport::Tcp {
                landed.layout.piece_bytes()
            } else {
                0
            };
            raw.say_bytes(&Frame::Pages(head).encode(payload)).await;
            let error = failure(within("outcome", incoming.outcome()).await);
            assert!(matches!(error, TransferError::StalePage { .. }), "{error}");
            assert_eq!(
                raw.hear_word().await,
                Some(Frame::Closed(raw.key, CloseReason::StalePage))
            );
        }
        still_serves(&landed, &sent).await;
    }
}

#[tokio::test]
async fn sec_02_a_sender_writes_only_into_the_pool_it_was_shown() {
    let landed = receiving(layout(16), TransportChoice::Shm).await;
    let sent = sending(layout(16), TransportChoice::Shm, 5);
    let (grant, _incoming) = landed.open(&[1000], 0);
    let progress = sent.progress(16, &[0]);
    advance_all(&progress, &sent.layout, 16);
    let mut outgoing = sent.sender.begin(grant, progress);
    let error = within("failure", outgoing.failed()).await;
    let expected = TransferError::Grant {
        what: "page slot",
        value: 1000,
        expected: 16,
    };
    assert_eq!(error, expected);
}

#[tokio::test]
async fn handshakes_that_hang_do_not_keep_others_out() {
    let landed = receiving(layout(16), TransportChoice::Tcp).await;
    let sent = sending(layout(16), TransportChoice::Tcp, 5);
    let (grant, _incoming) = landed.open(&[1], 0);
    let mut hanging = Vec::new();
    for _ in 0..40 {
        hanging.push(RawSender::connect(&grant, Transport::Tcp).await);
    }
    still_serves(&landed, &sent).await;
    drop(hanging);
    until("they are counted", || {
        landed.counter("handshakes_abandoned") == 40
    })
    .await;
}

#[tokio::test]
async fn xfr_24_silent_connections_make_room_for_those_that_speak() {
    for (choice, transport) in BOTH {
        let landed = receiving(layout(16), choice).await;
        let options = SenderOptions {
            connect_timeout: Duration::from_secs(3),
            ..sender_options(choice)
        };
        let sent = sending_with(layout(16), 5, options, |_| {});
        let (grant, _incoming) = landed.open(&[1], 0);
        let mut silent = Vec::new();
        for _ in 0..3 {
            // Waiting for each to time out would take 64 of them a second.
            for _ in 0..200 {
                silent.push(RawSender::connect(&grant, transport).await);
            }
            still_serves(&landed, &sent).await;
        }
        until("all but 64 had to go", || {
            landed.counter("handshakes_abandoned") >= 600 - 64
        })
        .await;
    }
}

#[tokio::test]
async fn a_grant_leads_to_no_socket_but_a_receivers() {
    let landed = receiving(layout(16), TransportChoice::Shm).await;
    let sent = sending(layout(16), TransportChoice::Shm, 5);
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("agent.sock");
    let stranger = std::os::unix::net::UnixListener::bind(&path).expect("bind");
    stranger.set_nonblocking(true).expect("a flag");
    let (mut grant, _incoming) = landed.open(&[1, 2], 0);
    for endpoint in &mut grant.endpoints {
        endpoint.address = path.display().to_string();
    }
    let progress = sent.progress(32, &[0, 1]);
    advance_all(&progress, &sent.layout, 32);
    let outgoing = sent.sender.begin(grant, progress);
    let error = within("an end", outgoing.commit(Vec::new())).await;
    let error = error.expect_err("nobody to send to").to_string();
    assert!(error.contains("no name of a receiver's socket"), "{error}");
    let met = stranger.accept().expect_err("nobody has come");
    assert_eq!(met.kind(), std::io::ErrorKind::WouldBlock);
    still_serves(&landed, &sent).await;
}
