//! What leaves when: partial pages, runs, overlap.

use std::time::{Duration, Instant};

use baton_kv_cache::PageIndex;
use baton_proto::domain::{Grant, PageSlot};
use baton_proto::ids::{Attempt, Incarnation, TransferId, TransferSecret};

use super::support::*;
use crate::TransportChoice;
use crate::frame::Frame;
use crate::progress::PageProgress;
use crate::send::attempt::{Action, Pace, SendAttempt};
use crate::send::run::Run;

pub(super) const PACE: Pace = Pace {
    keep_alive: Duration::from_millis(500),
    progress: Duration::from_secs(2),
};

pub(super) fn grant(layout: &baton_kv_cache::KvLayout, pages: &[u32], reused_pages: u32) -> Grant {
    Grant {
        transfer_id: TransferId([1; 16]),
        attempt: Attempt(1),
        incarnation: Incarnation(1),
        slots: pages
            .iter()
            .map(|page| PageSlot {
                page: *page,
                generation: 1,
            })
            .collect(),
        fingerprint: fingerprint(layout),
        reused_pages,
        endpoints: Vec::new(),
        secret: TransferSecret([1; 32]),
        lease: Duration::from_secs(2),
        span: None,
    }
}

/// Everything that may leave now; checksums do not matter here.
fn drain(attempt: &mut SendAttempt, progress: &PageProgress, now: Instant) -> Vec<Run> {
    let mut runs = Vec::new();
    while let Some(action) = attempt.next(now, progress, u64::MAX) {
        if let Action::Pages(run) = action {
            attempt.run_sent(now, &run, &vec![0; run.count as usize]);
            runs.push(run);
        } else {
            assert!(
                matches!(action, Action::Frame(Frame::Open(..))),
                "{action:?}"
            );
        }
    }
    runs
}

#[test]
fn xfr_13_partial_pages_leave_once_and_complete() {
    let layout = layout(8);
    let now = Instant::now();
    for prompt in [1, 15, 16, 17, 20, 31, 32, 33u32] {
        for chunk in [1, 7, 16, 17] {
            let pages: Vec<u32> = (0..layout.pages_for(prompt)).collect();
            let locals = pages.iter().map(|page| PageIndex(page + 1)).collect();
            let progress = PageProgress::new(layout.layers, 16, prompt, locals);
            let grant = grant(&layout, &pages, 0);
            let mut attempt = SendAttempt::new(now, grant, &progress, layout.piece_bytes(), PACE)
                .expect("attempt");
            let mut left = vec![vec![0; pages.len()]; layout.layers as usize];
            let mut tokens = 0;
            while tokens < prompt {
                tokens = (tokens + chunk).min(prompt);
                for layer in 0..layout.layers {
                    progress.advance(layer, tokens);
                    for run in drain(&mut attempt, &progress, now) {
                        assert_eq!((run.layer, run.local_page), (layer, run.slot_page + 1));
                        for page in run.index..run.index + run.count {
                            left[layer as usize][page as usize] += 1;
                            let complete = (page + 1) * 16 <= tokens || tokens == prompt;
                            assert!(complete, "page {page} of {prompt} left at {tokens}");
                        }
                    }
                }
            }
            assert!(
                left.iter().flatten().all(|count| *count == 1),
                "{prompt} by {chunk}: {left:?}"
            );
        }
    }
}

#[tokio::test]
async fn xfr_13_every_position_lands_bit_for_bit() {
    for choice in [TransportChoice::Tcp, TransportChoice::Shm] {
        let landed = receiving(layout(8), choice).await;
        let sent = sending(layout(8), choice, 13);
        for prompt in [1, 15, 16, 17, 20, 31, 32, 33u32] {
            for chunk in [1, 7, 16, 17] {
                let count = sent.layout.pages_for(prompt);
                let (local, granted): (Vec<u32>, Vec<u32>) =
                    ((0..count).collect(), (3..3 + count).collect());
                let (grant, mut incoming) = landed.open(&granted, 0);
                let progress = sent.progress(prompt, &local);
                let outgoing = sent.sender.begin(grant, progress.clone());
                let mut tokens = 0;
                while tokens < prompt {
                    tokens = (tokens + chunk).min(prompt);
                    advance_all(&progress, &sent.layout, tokens);
                    tokio::task::yield_now().await;
                }
                within("commit", outgoing.commit(Vec::new()))
                    .await
                    .expect("commit");
                committed(within("outcome", incoming.outcome()).await);
                assert_same(&sent, &landed, &local, &granted, 0);
            }
        }
    }
}

#[test]
fn runs_break_where_either_side_breaks_and_respect_credit() {
    let layout = layout(64);
    let now = Instant::now();
    let local = [5, 6, 7, 20, 21, 22].map(PageIndex).to_vec();
    let progress = PageProgress::new(layout.layers, 16, 96, local);
    let grant = grant(&layout, &[1, 2, 3, 4, 9, 10], 0);
    let piece = layout.piece_bytes() as u64;
    let mut attempt =
        SendAttempt::new(now, grant, &progress, piece as usize, PACE).expect("attempt");
    progress.advance(1, 96);
    let runs = drain(&mut attempt, &progress, now);
    let shape: Vec<_> = runs
        .iter()
        .map(|run| (run.layer, run.index, run.count))
        .collect();
    assert_eq!(shape, [(1, 0, 3), (1, 3, 1), (1, 4, 2)]);
    assert_eq!(attempt.in_flight(), 6 * piece);
    // Credit that is used up lets nothing through; what comes back lets through that much.
    progress.advance(0, 96);
    assert_eq!(attempt.next(now, &progress, piece - 1), None);
    let Some(Action::Pages(run)) = attempt.next(now, &progress, 2 * piece + 5) else {
        panic!("no run")
    };
    assert_eq!((run.layer, run.index, run.count), (0, 0, 2));
    let key = attempt.key();
    assert_eq!(
        attempt.heard(now, &Frame::Credit(key, 6 * piece)),
        6 * piece
    );
    // With nothing in flight, one piece may go whatever the receiver said: no deadlock.
    assert!(matches!(
        attempt.next(now, &progress, 0),
        Some(Action::Pages(Run { count: 1, .. }))
    ));
}

#[test]
fn most_bytes_leave_before_the_last_step_ends() {
    let layout = baton_kv_cache::KvLayout {
        layers: 30,
        ..layout(64)
    };
    let now = Instant::now();
    let pages: Vec<u32> = (0..63).collect();
    for chunk in [64, 128, 256] {
        let progress = PageProgress::new(
            30,
            16,
            1000,
            pages.iter().map(|page| PageIndex(*page)).collect(),
        );
        let mut attempt = SendAttempt::new(
            now,
            grant(&layout, &pages, 0),
            &progress,
            layout.piece_bytes(),
            PACE,
        )
        .expect("attempt");
        let (mut before, mut tokens) = (0, 0);
        while tokens < 1000 {
            tokens = (tokens + chunk).min(1000);
            for layer in 0..30 {
                progress.advance(layer, tokens);
                // What the last layer of the last chunk makes ready leaves after the step.
                if (layer, tokens) != (29, 1000) {
                    let runs = drain(&mut attempt, &progress, now);
                    before += runs.iter().map(|run| u64::from(run.count)).sum::<u64>();
                }
            }
        }
        let share = before as f64 / (63.0 * 30.0);
        assert!(share >= 0.9, "{share} of the pieces with chunks of {chunk}");
    }
}

#[tokio::test]
async fn senders_wake_for_useful_amounts_and_at_the_end_of_a_chunk() {
    let progress = PageProgress::new(4, 16, 160, (0..10).map(PageIndex).collect());
    progress.wake_after(8);
    // Layer 0: 4 pages gather, layer 1 fills the 8, layer 3 ends the chunk.
    for (layer, wakes) in [(0, false), (1, true), (2, false), (3, true)] {
        let woke = {
            let changed = progress.changed();
            tokio::pin!(changed);
            changed.as_mut().enable();
            progress.advance(layer, 64);
            std::future::poll_fn(|cx| std::task::Poll::Ready(changed.as_mut().poll(cx).is_ready()))
                .await
        };
        assert_eq!(woke, wakes, "layer {layer}");
    }
    assert_eq!((progress.ready_pages(0), progress.ready_pages(9)), (4, 0));
    progress.advance(0, 32);
    assert_eq!(progress.ready_pages(0), 4, "progress never goes back");
}

#[tokio::test]
async fn the_overlap_figure_counts_what_left_before_finish() {
    for choice in [TransportChoice::Tcp, TransportChoice::Shm] {
        let landed = receiving(layout(64), choice).await;
        let sent = sending(layout(64), choice, 1000);
        let pages: Vec<u32> = (0..63).collect();
        let (grant, mut incoming) = landed.open(&pages, 0);
        let progress = sent.progress(1000, &pages);
        let outgoing = sent.sender.begin(grant, progress.clone());
        let (mut tokens, mut ready) = (0, 0);
        while tokens < 1000 {
            // The step computes; what was ready before leaves meanwhile.
            until("bytes leave", || landed.counter("bytes_received") == ready).await;
            tokens = (tokens + 128).min(1000);
            advance_all(&progress, &sent.layout, tokens);
            ready = landed_bytes(&sent, tokens);
        }
        progress.finish();
        let stats = within("commit", outgoing.commit(Vec::new()))
            .await
            .expect("commit");
        committed(within("outcome", incoming.outcome()).await);
        assert_eq!(stats.bytes, 63 * sent.layout.page_bytes() as u64);
        // 896 tokens of 1,000 had left for certain.
        assert!(
            stats.bytes_before_finish >= landed_bytes(&sent, 896),
            "{stats:?}"
        );
        assert!(stats.bytes_before_finish <= stats.bytes);
    }
}

fn landed_bytes(sent: &SendingSide, tokens: u32) -> u64 {
    let pages = if tokens == 1000 { 63 } else { tokens / 16 };
    u64::from(pages) * sent.layout.page_bytes() as u64
}
