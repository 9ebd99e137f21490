//! Pages of broken shm attempts stay out of the pool until nobody can write them.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_proto::domain::Transport;
use baton_proto::ids::Incarnation;
use rustix::process::{Pid, Signal, kill_process};

use super::raw::{RawSender, script};
use super::support::*;
use crate::error::{CloseReason, TransferError};
use crate::frame::Frame;
use crate::socket::Socket;
use crate::{Outcome, TransportChoice};

/// Long enough to see that something does not happen, short enough for a test.
const GLANCE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn xfr_02_pages_of_a_cancelled_attempt_are_not_reused_under_a_writer() {
    let landed = receiving(layout(4), TransportChoice::Shm).await;
    let sent = sending(layout(4), TransportChoice::Shm, 2);
    let (grant, incoming) = landed.open(&[1, 2], 0);
    let words = script(&sent, &grant, &[0, 1], 32, landed.layout);
    let mut slow = RawSender::admitted(&grant, Transport::Shm, landed.layout.region_bytes()).await;
    slow.open(words.manifest).await;
    slow.pages(&words.runs[0]).await;
    // Request A is cancelled while its sender sits in a copy.
    let mut fence = tokio::spawn(incoming.fenced());
    assert_eq!(
        slow.hear_word().await,
        Some(Frame::Closed(slow.key, CloseReason::Dropped))
    );
    assert_eq!(landed.counter("pages_quarantined"), 2);
    // It goes on writing: the pages are still its own, whatever we close on our side.
    slow.pages(&words.runs[1]).await;
    assert!(
        tokio::time::timeout(GLANCE, &mut fence).await.is_err(),
        "still in quarantine"
    );
    slow.say(&Frame::RevokeAck(slow.key)).await;
    within("fence", fence).await.expect("task");
    // Now B may have the same pages, and lands exactly.
    let (grant, mut incoming) = landed.open(&[1, 2], 0);
    let progress = sent.progress(32, &[2, 3]);
    advance_all(&progress, &sent.layout, 32);
    within(
        "commit",
        sent.sender.begin(grant, progress).commit(Vec::new()),
    )
    .await
    .expect("commit");
    committed(within("outcome", incoming.outcome()).await);
    assert_same(&sent, &landed, &[2, 3], &[1, 2], 0);
    assert_eq!(landed.counter("pages_fenced"), 2);
}

#[tokio::test]
async fn xfr_02_late_tcp_frames_of_a_cancelled_attempt_touch_nothing() {
    let landed = receiving(layout(4), TransportChoice::Tcp).await;
    let sent = sending(layout(4), TransportChoice::Tcp, 2);
    let (grant, incoming) = landed.open(&[1, 2], 0);
    let words = script(&sent, &grant, &[0, 1], 32, landed.layout);
    let mut slow = RawSender::admitted(&grant, Transport::Tcp, 0).await;
    slow.open(words.manifest).await;
    // A piece is half way when A is cancelled: the rest of it comes late too.
    let head = Frame::Pages(words.runs[0].head.clone()).encode(words.runs[0].bytes[0].len());
    let (half, rest) = words.runs[0].bytes[0].split_at(100);
    slow.say_bytes(&[&head, half].concat()).await;
    until("half a piece has come", || {
        read(&*landed.memory, landed.layout.piece_offset(0, 1), 100) == half
    })
    .await;
    within("tcp fences at once", incoming.fenced()).await;
    let (grant, mut incoming) = landed.open(&[1, 2], 0);
    let progress = sent.progress(32, &[2, 3]);
    advance_all(&progress, &sent.layout, 32);
    let commit = tokio::spawn(sent.sender.begin(grant, progress).commit(Vec::new()));
    slow.say_bytes(rest).await;
    for run in &words.runs[1..] {
        slow.pages(run).await;
    }
    slow.say(&Frame::Commit(slow.key, words.commit)).await;
    within("commit", commit)
        .await
        .expect("task")
        .expect("commit");
    committed(within("outcome", incoming.outcome()).await);
    until("late frames are counted", || {
        landed.counter("frames_late") >= 6
    })
    .await;
    assert_same(&sent, &landed, &[2, 3], &[1, 2], 0);
    assert_eq!(landed.counter("committed"), 1);
}

#[tokio::test]
async fn past_the_cap_a_peer_falls_back_to_tcp() {
    let landed = receiving_with(layout(16), TransportChoice::Auto, 100, |options| {
        options.quarantine_cap_pages = 3;
    })
    .await;
    let sent = sending(layout(16), TransportChoice::Auto, 2);
    let mut hung = Vec::new();
    for (pages, transport) in [
        ([1, 2], Transport::Shm),
        ([3, 4], Transport::Shm),
        ([5, 6], Transport::Tcp),
    ] {
        // A good transfer by the same peer, over whatever is still allowed.
        let (grant, mut incoming) = landed.open(&[8, 9], 0);
        let progress = sent.progress(32, &[2, 3]);
        advance_all(&progress, &sent.layout, 32);
        let stats = within(
            "commit",
            sent.sender.begin(grant, progress).commit(Vec::new()),
        )
        .await;
        assert_eq!(stats.expect("commit").transport, transport);
        committed(within("outcome", incoming.outcome()).await);
        if transport == Transport::Shm {
            let (grant, incoming) = landed.open(&pages, 0);
            hung.push(
                RawSender::admitted(&grant, Transport::Shm, landed.layout.region_bytes()).await,
            );
            drop(incoming);
        }
    }
    assert_eq!(landed.counter("pages_quarantined"), 4);
    assert_eq!(landed.counter("refused_quarantine"), 1);
    drop(hung);
    until("all fenced", || landed.counter("pages_fenced") == 4).await;
    let (grant, _incoming) = landed.open(&[8, 9], 0);
    RawSender::admitted(&grant, Transport::Shm, landed.layout.region_bytes()).await;
}

#[tokio::test]
async fn xfr_04_a_stopped_process_keeps_its_pages_a_killed_one_frees_them() {
    let landed = receiving(layout(16), TransportChoice::Shm).await;
    let (grant, mut incoming) = landed.open(&[1, 2], 0);
    let raw = RawSender::admitted(&grant, Transport::Shm, landed.layout.region_bytes()).await;
    // The connection's end moves into another process, the only one to hold it from here on.
    let Socket::Unix(stream) = raw.socket else {
        panic!("unix")
    };
    let end: OwnedFd = stream.into_std().expect("socket").into();
    let mut child = Command::new("sleep")
        .arg("600")
        .stdin(Stdio::from(end))
        .spawn()
        .expect("sleep");
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).expect("stop");
    // Our close is no proof, nor is silence.
    let silent = tokio::time::timeout(GLANCE, incoming.outcome()).await;
    assert!(silent.is_err(), "{silent:?}");
    let mut fence = tokio::spawn(incoming.fenced());
    assert!(
        tokio::time::timeout(GLANCE, &mut fence).await.is_err(),
        "still in quarantine"
    );
    assert_eq!(
        (
            landed.counter("pages_quarantined"),
            landed.counter("pages_fenced")
        ),
        (2, 0)
    );
    kill_process(pid, Signal::KILL).expect("kill");
    within("fence", fence).await.expect("task");
    assert_eq!(landed.counter("pages_fenced"), 2);
    child.wait().expect("wait");
}

#[tokio::test]
async fn xfr_04_both_sides_give_up_at_once() {
    for choice in [TransportChoice::Tcp, TransportChoice::Shm] {
        let landed = receiving(layout(8), choice).await;
        let sent = sending(layout(8), choice, 4);
        for round in 0..200 {
            let (grant, incoming) = landed.open(&[1, 2, 3], 0);
            let progress = sent.progress(48, &[0, 1, 2]);
            advance_all(&progress, &sent.layout, 16 * (round % 4));
            let outgoing = sent.sender.begin(grant, progress.clone());
            for _ in 0..round % 13 {
                tokio::task::yield_now().await;
            }
            let fence = tokio::spawn(incoming.fenced());
            if round % 2 == 0 {
                drop(outgoing);
            } else {
                // Prefill is torn away in the middle of a commit.
                advance_all(&progress, &sent.layout, 48);
                let commit = tokio::spawn(outgoing.commit(Vec::new()));
                tokio::task::yield_now().await;
                commit.abort();
            }
            within("fence", fence).await.expect("task");
        }
        until("nothing is left in quarantine", || {
            landed.counter("pages_quarantined") == landed.counter("pages_fenced")
        })
        .await;
    }
}

#[tokio::test]
async fn xfr_04_a_black_hole_ends_with_the_lease() {
    for (choice, transport) in super::whole::BOTH {
        let landed = receiving_with(layout(8), choice, 100, |options| {
            options.lease = Duration::from_millis(50);
        })
        .await;
        let (grant, mut incoming) = landed.open(&[1, 2], 0);
        let silent = RawSender::admitted(&grant, transport, landed.layout.region_bytes()).await;
        let outcome = within("outcome", incoming.outcome()).await;
        assert_eq!(
            outcome,
            Outcome::Failed(TransferError::Expired { lease_ms: 50 })
        );
        // tcp needs no word of the peer; over shm the pages wait until it is gone.
        assert_eq!(incoming.is_fenced(), transport == Transport::Tcp);
        drop(silent);
        within("fence", incoming.fenced()).await;
    }
}

#[tokio::test]
async fn a_panic_in_a_connection_costs_its_attempt_and_no_page() {
    for choice in [TransportChoice::Tcp, TransportChoice::Shm] {
        let layout = layout(8);
        let torn = Arc::new(Torn {
            memory: region(&layout),
            is_torn: AtomicBool::new(true),
        });
        let memory = (torn.memory.clone(), torn.clone() as _);
        let landed = receiving_over(layout, memory, choice, 100, |_| {}).await;
        let sent = sending(layout, choice, 4);
        let commit = async |incoming: &mut crate::Incoming, grant| {
            let progress = sent.progress(32, &[2, 3]);
            advance_all(&progress, &sent.layout, 32);
            let outgoing = sent.sender.begin(grant, progress);
            let committed = within("the sender's end", outgoing.commit(Vec::new())).await;
            (committed, within("outcome", incoming.outcome()).await)
        };
        let (grant, mut incoming) = landed.open(&[1, 2], 0);
        let (committed, outcome) = commit(&mut incoming, grant).await;
        let error = failure(outcome);
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(committed.is_err(), "{committed:?}");
        within("fence", incoming.fenced()).await;
        assert_eq!(
            landed.counter("pages_quarantined"),
            landed.counter("pages_fenced")
        );
        torn.is_torn.store(false, Ordering::SeqCst);
        let (grant, mut incoming) = landed.open(&[1, 2], 0);
        let (committed, outcome) = commit(&mut incoming, grant).await;
        committed.expect("commit");
        super::support::committed(outcome);
        assert_same(&sent, &landed, &[2, 3], &[1, 2], 0);
    }
}

#[tokio::test]
async fn a_panic_in_a_senders_task_costs_its_attempt_and_no_credit() {
    for choice in [TransportChoice::Tcp, TransportChoice::Shm] {
        let landed = receiving(layout(8), choice).await;
        let torn = Arc::new(Torn {
            memory: region(&landed.layout),
            is_torn: AtomicBool::new(false),
        });
        let memory = (torn.memory.clone(), torn.clone() as _);
        let sent = sending_over(landed.layout, memory, 4, sender_options(choice));
        // All attempts share it, and it lives as long as one does.
        let credit = sent.sender.peers().credit(Incarnation(100), 8 << 20);
        let free = credit.available(0);
        torn.is_torn.store(true, Ordering::SeqCst);
        let (grant, mut incoming) = landed.open(&[1, 2], 0);
        let progress = sent.progress(32, &[2, 3]);
        advance_all(&progress, &sent.layout, 32);
        let mut outgoing = sent.sender.begin(grant, progress);
        let error = within("the sender's end", outgoing.failed()).await;
        assert!(error.to_string().contains("panicked"), "{error}");
        failure(within("outcome", incoming.outcome()).await);
        assert_eq!(credit.available(0), free, "{choice:?}");
        torn.is_torn.store(false, Ordering::SeqCst);
        let (grant, mut incoming) = landed.open(&[1, 2], 0);
        let progress = sent.progress(32, &[2, 3]);
        advance_all(&progress, &sent.layout, 32);
        let outgoing = sent.sender.begin(grant, progress);
        let done = within("commit", outgoing.commit(Vec::new())).await;
        done.expect("commit");
        committed(within("outcome", incoming.outcome()).await);
        assert_same(&sent, &landed, &[2, 3], &[1, 2], 0);
        assert_eq!(credit.available(0), free, "{choice:?}");
    }
}

#[tokio::test]
async fn the_pool_of_a_dead_receiver_is_given_up_soon() {
    let landed = receiving(layout(4), TransportChoice::Shm).await;
    let sent = sending(layout(4), TransportChoice::Shm, 2);
    let (grant, mut incoming) = landed.open(&[1, 2], 0);
    let progress = sent.progress(32, &[2, 3]);
    advance_all(&progress, &sent.layout, 32);
    let outgoing = sent.sender.begin(grant, progress);
    within("commit", outgoing.commit(Vec::new()))
        .await
        .expect("commit");
    committed(within("outcome", incoming.outcome()).await);
    let receiver = Incarnation(100);
    assert!(sent.sender.peers().maps(receiver));
    drop((incoming, landed));
    until("the mapping is gone", || {
        !sent.sender.peers().maps(receiver)
    })
    .await;
}
