//! Leases, keep-alives, slow links. The clock is an argument where it can be.

use std::time::{Duration, Instant};

use baton_kv_cache::PageIndex;
use baton_proto::domain::{PageSlot, Transport};
use baton_proto::ids::{Attempt, Incarnation, TransferId, TransferSecret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::progress::{PACE, grant};
use super::support::*;
use crate::error::TransferError;
use crate::frame::{AttemptKey, Frame, Manifest};
use crate::progress::PageProgress;
use crate::receive::attempt::{Peer, ReceiveAttempt};
use crate::send::attempt::{Action, SendAttempt};
use crate::{Outcome, TransportChoice};

const LEASE: Duration = Duration::from_secs(2);

fn receive_attempt(now: Instant) -> ReceiveAttempt {
    let key = AttemptKey {
        transfer_id: TransferId([1; 16]),
        attempt: Attempt(1),
    };
    let slots = vec![PageSlot {
        page: 1,
        generation: 1,
    }];
    ReceiveAttempt::new(
        now,
        key,
        TransferSecret([1; 32]),
        slots,
        0,
        layout(4),
        LEASE,
    )
}

fn expired(attempt: &mut ReceiveAttempt, now: Instant) -> bool {
    attempt.expire(now);
    attempt.ending().is_some()
}

#[test]
fn xfr_15_computing_for_long_costs_no_lease() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let mut attempt = receive_attempt(start);
    // The grant travels, the sender connects: the lease starts again.
    assert!(!expired(&mut attempt, at(1900)));
    let peer = Peer {
        incarnation: Incarnation(2),
        transport: Transport::Tcp,
    };
    attempt.connect(at(1900), peer).expect("connect");
    let manifest = Manifest {
        pages: 1,
        reused_pages: 0,
        layers: 3,
        piece_bytes: layout(4).piece_bytes() as u32,
        prompt_tokens: 16,
        bytes: layout(4).page_bytes() as u64,
    };
    attempt.open(at(1950), &manifest);
    // A chunk of 30 s, with a heartbeat every 1.5 s.
    for beat in 1..=20 {
        assert!(!expired(&mut attempt, at(1950 + beat * 1500)));
        attempt.renew(at(1950 + beat * 1500));
    }
    // Silence, however, ends it after one lease.
    assert!(!expired(&mut attempt, at(31_950 + 1999)));
    assert!(expired(&mut attempt, at(31_950 + 2000)));
    assert!(attempt.is_fenced());
}

#[test]
fn xfr_15_a_sender_speaks_while_it_computes_and_listens() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let layout = layout(4);
    let progress = PageProgress::new(layout.layers, 16, 16, vec![PageIndex(0)]);
    let mut attempt = SendAttempt::new(
        start,
        grant(&layout, &[1], 0),
        &progress,
        layout.piece_bytes(),
        PACE,
    )
    .expect("attempt");
    let key = attempt.key();
    assert!(matches!(
        attempt.next(start, &progress, 1),
        Some(Action::Frame(Frame::Open(..)))
    ));
    for beat in 1..=50 {
        let now = at(beat * 500);
        assert_eq!(attempt.next(at(beat * 500 - 1), &progress, 1), None);
        assert_eq!(
            attempt.next(now, &progress, 1),
            Some(Action::Frame(Frame::KeepAlive(key)))
        );
        attempt.heard(now, &Frame::KeepAlive(key));
        attempt.expire(now);
        assert_eq!(attempt.ending(), None);
    }
    // A receiver that answers no more is given up after one progress timeout.
    attempt.expire(at(26_999));
    assert_eq!(attempt.ending(), None);
    assert_eq!(attempt.wake_at(true), at(27_000));
    attempt.expire(at(27_000));
    let error = TransferError::NoProgress { limit_ms: 2000 };
    assert_eq!(
        attempt.ending(),
        Some(&crate::send::attempt::Ending::Failed(error))
    );
}

#[tokio::test]
async fn xfr_15_queueing_longer_than_the_lease_loses_nothing() {
    let queue = |choice| async move {
        let lease = Duration::from_millis(600);
        let landed = receiving_with(layout(8), choice, 100, |options| options.lease = lease).await;
        let sent = sending(layout(8), choice, 15);
        let (grant, mut incoming) = landed.open(&[1, 2], 0);
        let progress = sent.progress(32, &[0, 1]);
        let outgoing = sent.sender.begin(grant, progress.clone());
        // Three leases of computing before the first page: the case itself is about time.
        tokio::time::sleep(3 * lease).await;
        advance_all(&progress, &sent.layout, 32);
        within("commit", outgoing.commit(Vec::new()))
            .await
            .expect("commit");
        committed(within("outcome", incoming.outcome()).await);
    };
    tokio::join!(queue(TransportChoice::Tcp), queue(TransportChoice::Shm));
}

/// A link that passes so many bytes per millisecond from client to server, and stops after `most`.
async fn slow_link(server: String, bytes_per_ms: usize, most: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&server).await.expect("connect");
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            tokio::spawn(async move {
                let (mut words, mut passed) = (vec![0; bytes_per_ms], 0);
                while passed < most {
                    let Ok(read) = from_client.read(&mut words).await else {
                        return;
                    };
                    if read == 0 || to_server.write_all(&words[..read]).await.is_err() {
                        return;
                    }
                    passed += read;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                // A black hole: open, and silent.
                std::future::pending::<()>().await;
                drop((from_client, to_server));
            });
        }
    });
    address
}

#[tokio::test]
async fn xfr_16_a_slow_link_of_three_leases_is_carried_by_progress() {
    let pages: Vec<u32> = (0..200).collect();
    let big = layout(200);
    let landed = receiving_with(big, TransportChoice::Tcp, 100, |options| {
        options.lease = Duration::from_millis(800);
        options.credit_bytes = 1 << 20;
    })
    .await;
    let options = crate::SenderOptions {
        progress_timeout: Duration::from_millis(1600),
        ..sender_options(TransportChoice::Tcp)
    };
    let sent = sending_with(big, 16, options, |_| {});
    let (mut grant, mut incoming) = landed.open(&pages, 0);
    // 600 KiB at 256 bytes per ms or less.
    grant.endpoints[0].address =
        slow_link(grant.endpoints[0].address.clone(), 256, usize::MAX).await;
    let progress = sent.progress(3200, &pages);
    advance_all(&progress, &sent.layout, 3200);
    let started = Instant::now();
    within(
        "commit",
        sent.sender.begin(grant, progress).commit(Vec::new()),
    )
    .await
    .expect("commit");
    assert!(
        started.elapsed() > Duration::from_millis(2400),
        "the link was slow"
    );
    committed(within("outcome", incoming.outcome()).await);
    assert_same(&sent, &landed, &pages, &pages, 0);
}

#[tokio::test]
async fn xfr_16_a_forced_expiry_fails_before_anything_is_reused() {
    let pages: Vec<u32> = (0..64).collect();
    let landed = receiving_with(layout(64), TransportChoice::Tcp, 100, |options| {
        options.lease = Duration::from_millis(100);
    })
    .await;
    let options = crate::SenderOptions {
        progress_timeout: Duration::from_millis(300),
        ..sender_options(TransportChoice::Tcp)
    };
    let sent = sending_with(layout(64), 16, options, |_| {});
    let (mut grant, mut incoming) = landed.open(&pages, 0);
    grant.endpoints[0].address = slow_link(grant.endpoints[0].address.clone(), 4096, 40_000).await;
    let progress = sent.progress(1024, &pages);
    advance_all(&progress, &sent.layout, 1024);
    let commit = tokio::spawn(sent.sender.begin(grant, progress).commit(Vec::new()));
    let outcome = within("outcome", incoming.outcome()).await;
    assert_eq!(
        outcome,
        Outcome::Failed(TransferError::Expired { lease_ms: 100 })
    );
    assert!(incoming.is_fenced());
    let error = within("commit", commit)
        .await
        .expect("task")
        .expect_err("never committed");
    assert!(
        matches!(
            error,
            TransferError::Closed(crate::CloseReason::Expired) | TransferError::NoProgress { .. }
        ),
        "{error}"
    );
    assert_eq!(landed.counter("committed"), 0);
}
