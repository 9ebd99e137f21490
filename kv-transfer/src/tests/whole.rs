//! Whole transfers between a receiver and a sender.

use baton_kv_cache::{KvDtype, KvLayout};
use baton_proto::domain::{PageSlot, Transport};
use baton_proto::ids::Attempt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::support::*;
use crate::{Outcome, Reservation, TransferError, TransportChoice};

pub(super) const BOTH: [(TransportChoice, Transport); 2] = [
    (TransportChoice::Shm, Transport::Shm),
    (TransportChoice::Tcp, Transport::Tcp),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_land_and_commit() {
    let dtypes = [KvDtype::Bf16, KvDtype::F16, KvDtype::F32, KvDtype::Int8];
    for ((choice, transport), dtype) in BOTH
        .into_iter()
        .flat_map(|way| dtypes.map(|dtype| (way, dtype)))
    {
        let of = |pages| KvLayout {
            dtype,
            ..layout(pages)
        };
        let landed = receiving(of(40), choice).await;
        let sent = sending(of(64), choice, 1);
        let (local, granted) = ([3, 4, 5, 9, 8], [10, 11, 20, 21]);
        let (grant, mut incoming) = landed.open(&granted, 1);
        let progress = sent.progress(70, &local);
        let outgoing = sent.sender.begin(grant, progress.clone());
        advance_all(&progress, &sent.layout, 32);
        advance_all(&progress, &sent.layout, 70);
        progress.finish();
        let stats = within("commit", outgoing.commit(b"payload".to_vec()))
            .await
            .expect("commit");
        assert_eq!(stats.transport, transport);
        assert_eq!(stats.bytes, (4 * sent.layout.page_bytes()) as u64);
        assert_eq!(
            committed(within("outcome", incoming.outcome()).await),
            b"payload"
        );
        assert_same(&sent, &landed, &local, &granted, 1);
        within("fence", incoming.fenced()).await;
        assert_eq!(landed.counter("committed"), 1);
        assert_eq!(landed.counter("pages_quarantined"), 0);
    }
}

#[tokio::test]
async fn auto_prefers_shm_and_falls_back_to_tcp_on_another_host() {
    let landed = receiving(layout(40), TransportChoice::Auto).await;
    for (same_host, transport, fallbacks) in [(true, Transport::Shm, 0), (false, Transport::Tcp, 1)]
    {
        let sent = sending_as(layout(40), TransportChoice::Auto, 1, |identity| {
            if !same_host {
                identity.host_id = "elsewhere".to_owned();
            }
        });
        let (grant, mut incoming) = landed.open(&[1, 2], 0);
        let progress = sent.progress(32, &[0, 1]);
        advance_all(&progress, &sent.layout, 32);
        let outgoing = sent.sender.begin(grant, progress);
        let stats = within("commit", outgoing.commit(Vec::new()))
            .await
            .expect("commit");
        assert_eq!(stats.transport, transport);
        committed(within("outcome", incoming.outcome()).await);
        assert_same(&sent, &landed, &[0, 1], &[1, 2], 0);
        assert_eq!(
            counter(&sent.sender.counters().snapshot(), "shm_fallbacks"),
            fallbacks
        );
    }
}

#[tokio::test]
async fn a_fully_reused_prompt_commits_without_pages() {
    for (choice, _) in BOTH {
        let landed = receiving(layout(8), choice).await;
        let sent = sending(layout(8), choice, 1);
        let (grant, mut incoming) = landed.open(&[], 2);
        let outgoing = sent.sender.begin(grant, sent.progress(32, &[0, 1]));
        let stats = within("commit", outgoing.commit(b"x".to_vec()))
            .await
            .expect("commit");
        assert_eq!(stats.bytes, 0);
        assert_eq!(committed(within("outcome", incoming.outcome()).await), b"x");
    }
}

#[tokio::test]
async fn revoke_is_acknowledged_and_a_drop_revokes() {
    for (choice, _) in BOTH {
        for dropped in [false, true] {
            let landed = receiving(layout(8), choice).await;
            let sent = sending(layout(8), choice, 1);
            let (grant, mut incoming) = landed.open(&[1, 2], 0);
            let progress = sent.progress(32, &[0, 1]);
            progress.advance(0, 32);
            progress.advance(2, 16);
            let outgoing = sent.sender.begin(grant, progress);
            // Something of it has landed before it is given up.
            until("a piece landed", || landed.counter("bytes_received") > 0).await;
            if dropped {
                drop(outgoing);
            } else {
                within("revoke", outgoing.revoke()).await;
            }
            assert_eq!(
                within("outcome", incoming.outcome()).await,
                Outcome::Revoked
            );
            within("fence", incoming.fenced()).await;
            assert_eq!(landed.counter("revoked"), 1);
            assert_eq!(landed.counter("pages_quarantined"), 0);
        }
    }
}

#[tokio::test]
async fn a_second_attempt_sends_everything_again() {
    for (choice, _) in BOTH {
        let landed = receiving(layout(16), choice).await;
        let sent = sending(layout(16), choice, 9);
        let progress = sent.progress(40, &[4, 5, 6]);
        let (grant, incoming) = landed.open(&[1, 2, 3], 0);
        let mut outgoing = sent.sender.begin(grant, progress.clone());
        advance_all(&progress, &sent.layout, 32);
        until("a piece landed", || landed.counter("bytes_received") > 0).await;
        within("fence", incoming.fenced()).await;
        let error = within("failure", outgoing.failed()).await;
        assert_eq!(error, TransferError::Closed(crate::CloseReason::Dropped));

        let slots = [9, 8, 12]
            .map(|page| PageSlot {
                page,
                generation: 1,
            })
            .to_vec();
        let reservation = Reservation {
            attempt: Attempt(2),
            slots,
            reused_pages: 0,
        };
        let (grant, mut incoming) = landed.receiver.open(reservation);
        let outgoing = sent.sender.begin(grant, progress.clone());
        advance_all(&progress, &sent.layout, 40);
        within("commit", outgoing.commit(Vec::new()))
            .await
            .expect("commit");
        committed(within("outcome", incoming.outcome()).await);
        assert_same(&sent, &landed, &[4, 5, 6], &[9, 8, 12], 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_prompts_land_side_by_side() {
    let seed = 20;
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for (choice, _) in BOTH {
        let landed = receiving_with(layout(400), choice, 100, |options| {
            options.credit_bytes = 4096;
        })
        .await;
        let sent = sending(layout(400), choice, seed);
        let (mut local, mut granted): (Vec<u32>, Vec<u32>) =
            ((0..400).collect(), (0..400).collect());
        for order in [&mut local, &mut granted] {
            // Mostly adjacent, with breaks.
            let mut parts: Vec<Vec<u32>> = order.chunks(7).map(<[u32]>::to_vec).collect();
            parts.shuffle(&mut random);
            *order = parts.concat();
        }
        let transfers = (0..20).map(|index| {
            let pages = index * 20..index * 20 + random.random_range(1..=20);
            let prompt = (pages.len() as u32 * 16) - random.random_range(0..16);
            let (local, granted) = (&local[pages.clone()], &granted[pages]);
            let reused = random.random_range(0..=local.len());
            let (grant, incoming) = landed.open(&granted[reused..], reused as u32);
            let progress = sent.progress(prompt, local);
            let outgoing = sent.sender.begin(grant, progress.clone());
            let chunk = random.random_range(5..64);
            (
                local, granted, reused, incoming, outgoing, progress, prompt, chunk,
            )
        });
        let mut waiting = Vec::new();
        for (local, granted, reused, incoming, outgoing, progress, prompt, chunk) in transfers {
            let layout = sent.layout;
            let steps = tokio::spawn(async move {
                let mut tokens = 0;
                while tokens < prompt {
                    tokens = (tokens + chunk).min(prompt);
                    advance_all(&progress, &layout, tokens);
                    tokio::task::yield_now().await;
                }
                progress.finish();
                outgoing.commit(tokens.to_le_bytes().to_vec()).await
            });
            waiting.push((local, granted, reused, incoming, steps));
        }
        for (local, granted, reused, mut incoming, steps) in waiting {
            within("commit", steps)
                .await
                .expect("task")
                .expect("commit");
            committed(within("outcome", incoming.outcome()).await);
            assert_same(&sent, &landed, local, &granted[reused..], reused);
        }
        assert_eq!(landed.counter("committed"), 20);
    }
}

#[tokio::test]
async fn a_dropped_receiver_closes_its_attempts() {
    for (choice, _) in BOTH {
        let landed = receiving(layout(8), choice).await;
        let sent = sending(layout(8), choice, 1);
        let (grant, mut incoming) = landed.open(&[1], 0);
        let (late, _unused) = landed.open(&[2], 0);
        let mut outgoing = sent.sender.begin(grant, sent.progress(16, &[0]));
        until("the sender is in", || {
            counter(&sent.sender.counters().snapshot(), "opened") == 1
        })
        .await;
        drop(landed);
        let outcome = within("outcome", incoming.outcome()).await;
        assert_eq!(failure(outcome), TransferError::Shutdown);
        within("failure", outgoing.failed()).await;
        within("fence", incoming.fenced()).await;
        let mut outgoing = sent.sender.begin(late, sent.progress(16, &[0]));
        within("failure", outgoing.failed()).await;
    }
}

#[tokio::test]
async fn no_page_is_read_after_a_drop() {
    for (choice, _) in BOTH {
        for round in 0..50 {
            // A sender that is dropped before it connects is only missed when the lease ends.
            let landed = receiving_with(layout(64), choice, 100, |options| {
                options.lease = std::time::Duration::from_millis(50);
            })
            .await;
            let sent = sending(layout(64), choice, round);
            let pages: Vec<u32> = (0..60).collect();
            let (grant, mut incoming) = landed.open(&pages, 0);
            let progress = sent.progress(960, &pages);
            advance_all(&progress, &sent.layout, 960);
            let outgoing = sent.sender.begin(grant, progress);
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            drop(outgoing);
            // The next owner of the local pages writes at once; what was sent is still the old content.
            fill_random(&*sent.memory, 1000 + round);
            let outcome = within("outcome", incoming.outcome()).await;
            let torn = matches!(
                &outcome,
                Outcome::Failed(
                    TransferError::ConnectionLost { .. } | TransferError::Expired { .. }
                )
            );
            assert!(torn || outcome == Outcome::Revoked, "{outcome:?}");
            within("fence", incoming.fenced()).await;
        }
    }
}
