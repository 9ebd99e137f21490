//! A sender against receivers that hang, lie or vanish; transfers beside stuck ones.

use std::time::Duration;

use baton_kv_cache::KvLayout;
use baton_proto::domain::{Grant, PageSlot, TransferEndpoint, Transport};
use baton_proto::ids::{Attempt, Incarnation, TransferId, TransferSecret};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::raw::{RawSender, script};
use super::support::*;
use crate::error::{CloseReason, TransferError};
use crate::frame::{AttemptKey, Frame, MAX_COMMIT_PAYLOAD_BYTES, Welcome};
use crate::read_buffer::ReadBuffer;
use crate::socket::Socket;
use crate::{SenderOptions, TransportChoice, host_id};

/// A receiver by hand, and a grant to it.
struct RawReceiver {
    listener: TcpListener,
    grant: Grant,
}

impl RawReceiver {
    async fn bind(pages: &[u32]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address").to_string();
        let grant = Grant {
            transfer_id: TransferId([5; 16]),
            attempt: Attempt(1),
            incarnation: Incarnation(100),
            slots: pages
                .iter()
                .map(|page| PageSlot {
                    page: *page,
                    generation: 1,
                })
                .collect(),
            fingerprint: fingerprint(&layout(8)),
            reused_pages: 0,
            endpoints: vec![TransferEndpoint {
                transport: Transport::Tcp,
                address,
                host_id: host_id(),
            }],
            secret: TransferSecret([5; 32]),
            lease: Duration::from_secs(5),
            span: None,
        };
        Self { listener, grant }
    }

    /// Accepts, hears the Hello, says `answer`.
    async fn accept(&self, answer: &Frame) -> RawSender {
        let (stream, _) = within("accept", self.listener.accept())
            .await
            .expect("accept");
        let key = AttemptKey {
            transfer_id: self.grant.transfer_id,
            attempt: self.grant.attempt,
        };
        let (socket, buffer) = (Socket::Tcp(stream), ReadBuffer::new());
        let mut raw = RawSender {
            socket,
            buffer,
            key,
            memory: None,
        };
        assert!(matches!(raw.hear().await, Some(Frame::Hello(_))));
        raw.say(answer).await;
        raw
    }
}

fn welcome(credit_bytes: u64) -> Frame {
    let piece_bytes = layout(8).piece_bytes() as u32;
    Frame::Welcome(Welcome {
        receiver: Incarnation(100),
        credit_bytes,
        pool_pages: 8,
        piece_bytes,
        memory_attached: false,
    })
}

fn impatient() -> SenderOptions {
    SenderOptions {
        connect_timeout: Duration::from_millis(100),
        progress_timeout: Duration::from_millis(100),
        ..sender_options(TransportChoice::Tcp)
    }
}

#[tokio::test]
async fn a_receiver_that_never_answers_is_given_up() {
    let receiver = RawReceiver::bind(&[1]).await;
    let sent = sending_with(layout(8), 1, impatient(), |_| {});
    let mut outgoing = sent
        .sender
        .begin(receiver.grant.clone(), sent.progress(16, &[0]));
    let error = within("failure", outgoing.failed()).await;
    assert_eq!(error, TransferError::ConnectTimeout { limit_ms: 100 });
}

#[tokio::test]
async fn a_receiver_that_falls_silent_is_given_up() {
    let receiver = RawReceiver::bind(&[1]).await;
    let sent = sending_with(layout(8), 1, impatient(), |_| {});
    let mut outgoing = sent
        .sender
        .begin(receiver.grant.clone(), sent.progress(16, &[0]));
    let _silent = receiver.accept(&welcome(1 << 20)).await;
    let error = within("failure", outgoing.failed()).await;
    assert_eq!(error, TransferError::NoProgress { limit_ms: 100 });
    // So is one that does not acknowledge Commit, or Revoke.
    for commits in [true, false] {
        let receiver = RawReceiver::bind(&[]).await;
        let outgoing = sent
            .sender
            .begin(receiver.grant.clone(), sent.progress(0, &[]));
        let _silent = receiver.accept(&welcome(1 << 20)).await;
        if commits {
            let error = within("commit", outgoing.commit(Vec::new()))
                .await
                .expect_err("silent");
            assert_eq!(error, TransferError::NoProgress { limit_ms: 100 });
        } else {
            within("revoke", outgoing.revoke()).await;
        }
    }
}

#[tokio::test]
async fn a_lying_receiver_ends_the_attempt_with_its_name() {
    let key = AttemptKey {
        transfer_id: TransferId([5; 16]),
        attempt: Attempt(1),
    };
    let other = AttemptKey {
        attempt: Attempt(2),
        ..key
    };
    let lies = [
        (Frame::CommitAck(key), TransferError::OutOfTurn("CommitAck")),
        (Frame::Revoke(key), TransferError::OutOfTurn("Revoke")),
        (Frame::Credit(other, 5), TransferError::OutOfTurn("Credit")),
        (
            Frame::Closed(key, CloseReason::Expired),
            TransferError::Closed(CloseReason::Expired),
        ),
    ];
    let sent = sending(layout(8), TransportChoice::Tcp, 1);
    for (lie, expected) in lies {
        let receiver = RawReceiver::bind(&[1]).await;
        let mut outgoing = sent
            .sender
            .begin(receiver.grant.clone(), sent.progress(16, &[0]));
        let mut raw = receiver.accept(&welcome(1 << 20)).await;
        raw.say(&lie).await;
        assert_eq!(within("failure", outgoing.failed()).await, expected);
        if matches!(lie, Frame::Closed(..)) {
            let mut word = raw.hear().await;
            if matches!(word, Some(Frame::Open(..))) {
                word = raw.hear().await;
            }
            assert_eq!(word, Some(Frame::RevokeAck(key)));
        }
    }
    let receiver = RawReceiver::bind(&[1]).await;
    let mut outgoing = sent
        .sender
        .begin(receiver.grant.clone(), sent.progress(16, &[0]));
    let mut raw = receiver.accept(&welcome(1 << 20)).await;
    raw.say_bytes(&[0xff; 64]).await;
    assert!(matches!(
        within("failure", outgoing.failed()).await,
        TransferError::Frame(_)
    ));
}

#[tokio::test]
async fn nothing_is_sent_after_commit() {
    let receiver = RawReceiver::bind(&[1]).await;
    let sent = sending(layout(8), TransportChoice::Tcp, 1);
    let progress = sent.progress(16, &[0]);
    advance_all(&progress, &sent.layout, 16);
    let commit = tokio::spawn(
        sent.sender
            .begin(receiver.grant.clone(), progress)
            .commit(b"c".to_vec()),
    );
    let mut raw = receiver.accept(&welcome(1 << 20)).await;
    let mut skip = 0;
    let committed = loop {
        let decoded = loop {
            raw.buffer.consume(skip.min(raw.buffer.filled().len()));
            if let Some(decoded) = raw.buffer.next_frame().expect("frame") {
                break decoded;
            }
            skip = 0;
            let (buffer, socket) = (&mut raw.buffer, &mut raw.socket);
            within(
                "read",
                std::future::poll_fn(|cx| buffer.poll_fill(socket, cx)),
            )
            .await
            .expect("read");
        };
        skip = decoded.payload_bytes;
        if let Frame::Commit(_, commit) = decoded.frame {
            break commit;
        }
    };
    assert_eq!(
        (committed.pieces, committed.payload.as_slice()),
        (3, b"c".as_slice())
    );
    raw.say(&Frame::CommitAck(raw.key)).await;
    within("commit", commit)
        .await
        .expect("task")
        .expect("commit");
    assert_eq!(
        raw.hear().await,
        None,
        "the sender hangs up without another word"
    );
}

#[tokio::test]
async fn small_credit_slows_but_never_stops() {
    for choice in [TransportChoice::Tcp, TransportChoice::Shm] {
        for credit_bytes in [0, 1, layout(64).piece_bytes(), 3 * layout(64).piece_bytes()] {
            let landed = receiving_with(layout(64), choice, 100, |options| {
                options.credit_bytes = credit_bytes;
            })
            .await;
            let sent = sending(layout(64), choice, 3);
            let pages: Vec<u32> = (0..60).collect();
            let (grant, mut incoming) = landed.open(&pages, 0);
            let progress = sent.progress(960, &pages);
            advance_all(&progress, &sent.layout, 960);
            within(
                "commit",
                sent.sender.begin(grant, progress).commit(Vec::new()),
            )
            .await
            .expect("commit");
            committed(within("outcome", incoming.outcome()).await);
            assert_same(&sent, &landed, &pages, &pages, 0);
        }
    }
}

#[tokio::test]
async fn stuck_transfers_do_not_stall_their_neighbours() {
    let landed = receiving(layout(64), TransportChoice::Tcp).await;
    let sent = sending(layout(64), TransportChoice::Tcp, 3);
    let mut stuck = Vec::new();
    for index in 0..4 {
        let (grant, incoming) = landed.open(&[index], 0);
        let words = script(&sent, &grant, &[index], 16, landed.layout);
        let mut raw = RawSender::admitted(&grant, Transport::Tcp, 0).await;
        raw.open(words.manifest).await;
        let head = Frame::Pages(words.runs[0].head.clone()).encode(words.runs[0].bytes[0].len());
        raw.say_bytes(&[&head[..], &words.runs[0].bytes[0][..50]].concat())
            .await;
        stuck.push((raw, incoming));
    }
    for index in 4..16 {
        let (grant, mut incoming) = landed.open(&[index], 0);
        let progress = sent.progress(16, &[index]);
        advance_all(&progress, &sent.layout, 16);
        within(
            "commit",
            sent.sender.begin(grant, progress).commit(Vec::new()),
        )
        .await
        .expect("commit");
        committed(within("outcome", incoming.outcome()).await);
    }
    for (mut raw, mut incoming) in stuck {
        assert!(raw.alive().await);
        drop(raw);
        failure(within("outcome", incoming.outcome()).await);
    }
}

/// Puts itself between sender and receiver: passes so many of the sender's bytes on, then reads no more.
async fn clog(grant: &mut Grant, bytes: u64) -> AbortOnDrop {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let here = listener.local_addr().expect("address").to_string();
    let there = std::mem::replace(&mut grant.endpoints[0].address, here);
    AbortOnDrop(tokio::spawn(async move {
        let (sender, _) = listener.accept().await.expect("accept");
        let receiver = TcpStream::connect(there).await.expect("connect");
        let (from_sender, mut to_sender) = sender.into_split();
        let (mut from_receiver, mut to_receiver) = receiver.into_split();
        let mut some = from_sender.take(bytes);
        let forth = tokio::io::copy(&mut some, &mut to_receiver);
        let back = tokio::io::copy(&mut from_receiver, &mut to_sender);
        let _ = tokio::join!(back, async {
            let _ = forth.await;
            std::future::pending::<()>().await;
        });
    }))
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test]
async fn xfr_20_transfers_that_nobody_reads_leave_the_others_moving() {
    const PAGES: u32 = 12;
    // Pieces of 64 KiB: the four that stand still want more than the credit that all share.
    let wide = KvLayout {
        kv_heads: 8,
        head_dim: 128,
        ..layout(16 * PAGES)
    };
    let landed = receiving(wide, TransportChoice::Tcp).await;
    let sent = sending(wide, TransportChoice::Tcp, 3);
    let mut clogs = Vec::new();
    let mut transfers = Vec::new();
    for index in 0..16 {
        let pages: Vec<u32> = (index * PAGES..(index + 1) * PAGES).collect();
        let (mut grant, incoming) = landed.open(&pages, 0);
        if index < 4 {
            clogs.push(clog(&mut grant, 200_000).await);
        }
        let progress = sent.progress(16 * PAGES, &pages);
        advance_all(&progress, &sent.layout, 16 * PAGES);
        let outgoing = sent.sender.begin(grant, progress);
        transfers.push((pages, incoming, tokio::spawn(outgoing.commit(Vec::new()))));
    }
    let moving = transfers.split_off(4);
    for (pages, mut incoming, commit) in moving {
        within("commit", commit)
            .await
            .expect("task")
            .expect("commit");
        committed(within("outcome", incoming.outcome()).await);
        assert_same(&sent, &landed, &pages, &pages, 0);
    }
    for (_, incoming, commit) in transfers {
        assert!(!commit.is_finished());
        within("fence", incoming.fenced()).await;
        commit.abort();
    }
}

#[tokio::test]
async fn grants_that_do_not_fit_are_refused_before_connecting() {
    let landed = receiving(layout(8), TransportChoice::Tcp).await;
    let sent = sending(layout(8), TransportChoice::Tcp, 1);
    let (grant, _incoming) = landed.open(&[1, 2], 0);
    let more = Grant {
        reused_pages: u32::MAX,
        ..grant.clone()
    };
    let fewer = Grant {
        slots: Vec::new(),
        ..grant.clone()
    };
    let nowhere = Grant {
        endpoints: Vec::new(),
        ..grant.clone()
    };
    for (grant, name) in [
        (more, "bad_grant"),
        (fewer, "bad_grant"),
        (nowhere, "no_endpoint"),
    ] {
        let mut outgoing = sent.sender.begin(grant, sent.progress(32, &[0, 1]));
        assert_eq!(within("failure", outgoing.failed()).await.name(), name);
    }
    let outgoing = sent.sender.begin(grant, sent.progress(32, &[0, 1]));
    let long = vec![0; MAX_COMMIT_PAYLOAD_BYTES + 1];
    let error = within("commit", outgoing.commit(long))
        .await
        .expect_err("too long");
    assert_eq!(error.name(), "commit_payload");
    assert_eq!(landed.counter("failed_gap"), 0);
}

#[tokio::test]
async fn a_grant_with_a_lease_of_nothing_does_not_spin() {
    let landed = receiving(layout(8), TransportChoice::Tcp).await;
    let sent = sending(layout(8), TransportChoice::Tcp, 1);
    let (mut grant, mut incoming) = landed.open(&[1], 0);
    grant.lease = Duration::ZERO;
    let progress = sent.progress(16, &[0]);
    let outgoing = sent.sender.begin(grant, progress.clone());
    until("the sender is in", || {
        counter(&sent.sender.counters().snapshot(), "opened") == 1
    })
    .await;
    advance_all(&progress, &sent.layout, 16);
    within("commit", outgoing.commit(Vec::new()))
        .await
        .expect("commit");
    committed(within("outcome", incoming.outcome()).await);
}
