//! Wrong bytes, wrong places, wrong counts: every one is found, none is committed.

use baton_proto::domain::Transport;

use super::raw::{RawSender, Script, script};
use super::support::*;
use super::whole::BOTH;
use crate::error::{CloseReason, TransferError};
use crate::frame::{Frame, HEADER_BYTES};
use crate::{Incoming, Outcome};

struct Scene {
    landed: ReceivingSide,
    incoming: Incoming,
    raw: RawSender,
    script: Script,
}

/// A receiver, and a scripted sender that has been admitted and opened.
async fn scene(transport: Transport) -> Scene {
    let choice = BOTH
        .iter()
        .find(|(_, known)| *known == transport)
        .expect("transport")
        .0;
    let landed = receiving(layout(16), choice).await;
    let sent = sending(layout(16), choice, 17);
    let (grant, incoming) = landed.open(&[4, 5, 6, 9], 1);
    let script = script(&sent, &grant, &[1, 2, 3, 4], 80, landed.layout);
    let mut raw = RawSender::admitted(&grant, transport, landed.layout.region_bytes()).await;
    raw.open(script.manifest).await;
    Scene {
        landed,
        incoming,
        raw,
        script,
    }
}

impl Scene {
    async fn say_all(&mut self) {
        for run in self.script.runs.clone() {
            self.raw.pages(&run).await;
        }
    }
    async fn commit(&mut self) {
        self.raw
            .say(&Frame::Commit(self.raw.key, self.script.commit.clone()))
            .await;
    }
    /// The attempt fails, the sender is told so, and nothing is ever committed.
    async fn fails(mut self, reason: CloseReason) -> TransferError {
        let error = failure(within("outcome", self.incoming.outcome()).await);
        let key = self.raw.key;
        let word = self.raw.hear_word().await;
        assert_eq!(word, Some(Frame::Closed(key, reason)), "{error}");
        self.raw.say(&Frame::RevokeAck(key)).await;
        within("fence", self.incoming.fenced()).await;
        assert_eq!(
            (
                self.landed.counter("committed"),
                self.landed.counter("failed")
            ),
            (0, 1)
        );
        error
    }
}

#[tokio::test]
async fn the_script_alone_is_committed() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        scene.say_all().await;
        scene.commit().await;
        assert_eq!(
            committed(within("outcome", scene.incoming.outcome()).await),
            b"first tokens"
        );
        assert_eq!(
            scene.raw.hear_word().await,
            Some(Frame::CommitAck(scene.raw.key))
        );
    }
}

#[tokio::test]
async fn xfr_17_flipped_bit_swapped_pages_zeroed_layer() {
    type Spoil = fn(&mut Script);
    let spoils: [(&str, Spoil); 4] = [
        ("one bit", |script| script.runs[6].bytes[0][100] ^= 4),
        ("two pages swapped", |script| {
            let (a, b) = (script.runs[4].bytes.clone(), script.runs[5].bytes.clone());
            (script.runs[4].bytes, script.runs[5].bytes) = (b, a);
        }),
        ("two layers swapped, checksums and all", |script| {
            let (a, b) = (script.runs[0].clone(), script.runs[4].clone());
            (script.runs[0].bytes, script.runs[4].bytes) = (b.bytes, a.bytes);
            (
                script.runs[0].head.marks[0].checksum,
                script.runs[4].head.marks[0].checksum,
            ) = (b.head.marks[0].checksum, a.head.marks[0].checksum);
        }),
        ("a zeroed layer", |script| {
            script.runs[4..8]
                .iter_mut()
                .for_each(|run| run.bytes[0].fill(0));
        }),
    ];
    for (_, transport) in BOTH {
        for (what, spoil) in spoils {
            let mut scene = scene(transport).await;
            spoil(&mut scene.script);
            scene.say_all().await;
            scene.commit().await;
            let counters = scene.landed.receiver.counters();
            let error = scene.fails(CloseReason::Corrupt).await;
            assert!(
                matches!(error, TransferError::Checksum { .. }),
                "{what}: {error}"
            );
            assert_eq!(counter(&counters.snapshot(), "checksum_mismatch"), 1);
        }
    }
}

#[tokio::test]
async fn xfr_17_consistent_lies_meet_the_digest() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        scene.script.commit.digest[31] ^= 1;
        scene.say_all().await;
        scene.commit().await;
        assert_eq!(
            scene.fails(CloseReason::Corrupt).await,
            TransferError::Digest
        );
    }
}

#[tokio::test]
async fn xfr_17_wrong_page_index_touches_nothing() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        let memory = scene.landed.memory.clone();
        let before = read(&*memory, 0, scene.landed.layout.region_bytes());
        // Page 12 is somebody else's; the sender writes over tcp, or claims to have written over shm.
        let mut run = scene.script.runs[0].clone();
        run.head.page = 12;
        let words = match transport {
            Transport::Tcp => [
                Frame::Pages(run.head.clone()).encode(run.bytes[0].len()),
                run.bytes.concat(),
            ]
            .concat(),
            Transport::Shm => Frame::Pages(run.head.clone()).encode(0),
        };
        scene.raw.say_bytes(&words).await;
        let layout = scene.landed.layout;
        let error = scene.fails(CloseReason::StalePage).await;
        assert!(
            matches!(error, TransferError::StalePage { page: 12, .. }),
            "{error}"
        );
        assert_eq!(before, read(&*memory, 0, layout.region_bytes()));
    }
}

#[tokio::test]
async fn xfr_17_last_page_one_byte_short() {
    let mut scene = scene(Transport::Tcp).await;
    let last = scene.script.runs.pop().expect("run");
    scene.say_all().await;
    let mut words = Frame::Pages(last.head.clone()).encode(last.bytes[0].len() - 1);
    words.extend_from_slice(&last.bytes[0][1..]);
    scene.raw.say_bytes(&words).await;
    let error = scene.fails(CloseReason::Violation).await;
    assert!(
        matches!(
            error,
            TransferError::Manifest {
                what: "payload bytes",
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn xfr_08_a_missing_piece_fails_at_commit() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        scene.script.runs.remove(7);
        scene.say_all().await;
        scene.commit().await;
        let error = scene.fails(CloseReason::Gap).await;
        assert_eq!(
            error,
            TransferError::Gap {
                landed: 11,
                expected: 12,
                stated: 12
            }
        );
    }
}

#[tokio::test]
async fn xfr_08_a_lost_final_frame_fails_at_once() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        scene.say_all().await;
        let Scene {
            landed,
            mut incoming,
            raw,
            ..
        } = scene;
        drop(raw);
        let outcome = within("outcome", incoming.outcome()).await;
        assert!(matches!(
            failure(outcome),
            TransferError::ConnectionLost { .. }
        ));
        within("fence", incoming.fenced()).await;
        assert_eq!(landed.counter("failed_connection_lost"), 1);
    }
}

#[tokio::test]
async fn xfr_08_duplicates_and_reordering_are_harmless() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        let third = scene.script.runs[3].clone();
        scene.script.runs.swap(5, 6);
        scene.script.runs.insert(4, third.clone());
        scene.script.runs.push(third);
        scene.say_all().await;
        scene.commit().await;
        committed(within("outcome", scene.incoming.outcome()).await);
        assert_eq!(scene.landed.counter("pieces_duplicate"), 2);
    }
}

#[tokio::test]
async fn xfr_08_a_duplicate_that_differs_fails() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        let mut again = scene.script.runs[3].clone();
        again.bytes[0][0] ^= 1;
        again.head.marks[0].checksum ^= 1;
        scene.script.runs.push(again);
        scene.say_all().await;
        scene.commit().await;
        assert!(matches!(
            scene.fails(CloseReason::Corrupt).await,
            TransferError::Checksum { .. }
        ));
    }
}

#[tokio::test]
async fn xfr_08_one_page_too_many_fails() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        let mut more = scene.script.runs[3].clone();
        more.head.position += 1;
        more.head.page += 1;
        scene.say_all().await;
        let words = match transport {
            Transport::Tcp => [
                Frame::Pages(more.head.clone()).encode(more.bytes[0].len()),
                more.bytes.concat(),
            ]
            .concat(),
            Transport::Shm => Frame::Pages(more.head.clone()).encode(0),
        };
        scene.raw.say_bytes(&words).await;
        scene.commit().await;
        assert!(matches!(
            scene.fails(CloseReason::StalePage).await,
            TransferError::StalePage { .. }
        ));
    }
}

#[tokio::test]
async fn xfr_08_a_wrong_manifest_fails_at_open() {
    for (_, transport) in BOTH {
        for field in 0..6 {
            let choice = BOTH
                .iter()
                .find(|(_, known)| *known == transport)
                .expect("transport")
                .0;
            let landed = receiving(layout(16), choice).await;
            let sent = sending(layout(16), choice, 17);
            let (grant, mut incoming) = landed.open(&[4, 5], 0);
            let mut manifest = script(&sent, &grant, &[1, 2], 32, landed.layout).manifest;
            match field {
                0 => manifest.pages = u32::MAX,
                1 => manifest.reused_pages += 1,
                2 => manifest.layers = 1_000_000,
                3 => manifest.piece_bytes -= 1,
                4 => manifest.prompt_tokens = u32::MAX,
                _ => manifest.bytes = u64::MAX,
            }
            let mut raw =
                RawSender::admitted(&grant, transport, landed.layout.region_bytes()).await;
            raw.open(manifest).await;
            let outcome = within("outcome", incoming.outcome()).await;
            assert!(
                matches!(&outcome, Outcome::Failed(TransferError::Manifest { .. })),
                "{outcome:?}"
            );
            assert_eq!(
                raw.hear_word().await,
                Some(Frame::Closed(raw.key, CloseReason::Violation))
            );
        }
    }
}

#[tokio::test]
async fn frames_before_open_and_after_the_end_change_nothing() {
    for (_, transport) in BOTH {
        // After Commit: answered Closed, counted, dropped before memory.
        let mut scene = scene(transport).await;
        scene.say_all().await;
        scene.commit().await;
        committed(within("outcome", scene.incoming.outcome()).await);
        assert_eq!(
            scene.raw.hear_word().await,
            Some(Frame::CommitAck(scene.raw.key))
        );
        let memory = scene.landed.memory.clone();
        let before = read(&*memory, 0, scene.landed.layout.region_bytes());
        let mut late = scene.script.runs[0].clone();
        late.bytes[0].fill(0xee);
        let words = match transport {
            Transport::Tcp => [
                Frame::Pages(late.head.clone()).encode(late.bytes[0].len()),
                late.bytes.concat(),
            ]
            .concat(),
            Transport::Shm => Frame::Pages(late.head.clone()).encode(0),
        };
        scene.raw.say_bytes(&words).await;
        assert_eq!(
            scene.raw.hear_word().await,
            Some(Frame::Closed(scene.raw.key, CloseReason::Committed))
        );
        assert_eq!(
            before,
            read(&*memory, 0, scene.landed.layout.region_bytes())
        );
        assert_eq!(scene.landed.counter("frames_late"), 1);
    }
    // Pages before the manifest.
    let landed = receiving(layout(16), crate::TransportChoice::Tcp).await;
    let sent = sending(layout(16), crate::TransportChoice::Tcp, 3);
    let (grant, mut incoming) = landed.open(&[4], 0);
    let script = script(&sent, &grant, &[1], 16, landed.layout);
    let mut raw = RawSender::admitted(&grant, Transport::Tcp, 0).await;
    assert!(script.runs[0].bytes[0].len() > HEADER_BYTES);
    raw.pages(&script.runs[0]).await;
    assert_eq!(
        failure(within("outcome", incoming.outcome()).await),
        TransferError::OutOfTurn("Pages")
    );
}

#[tokio::test]
async fn xfr_02_frames_of_other_attempts_are_dropped_and_counted() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        let run = scene.script.runs[0].clone();
        let (mut other_id, mut other_attempt) = (run.head.clone(), run.head.clone());
        other_id.key.transfer_id.0[15] ^= 1;
        other_attempt.key.attempt.0 += 1;
        for head in [other_id, other_attempt] {
            let payload = match transport {
                Transport::Tcp => vec![0xee; run.bytes[0].len()],
                Transport::Shm => Vec::new(),
            };
            let words = [Frame::Pages(head).encode(payload.len()), payload].concat();
            scene.raw.say_bytes(&words).await;
        }
        scene.say_all().await;
        scene.commit().await;
        committed(within("outcome", scene.incoming.outcome()).await);
        assert_eq!(scene.landed.counter("frames_late"), 2);
        assert_eq!(scene.landed.counter("pieces_duplicate"), 0);
    }
}

#[tokio::test]
async fn xfr_01_an_old_generation_touches_nothing() {
    for (_, transport) in BOTH {
        let mut scene = scene(transport).await;
        let memory = scene.landed.memory.clone();
        let bytes = scene.landed.layout.region_bytes();
        let before = read(&*memory, 0, bytes);
        let mut run = scene.script.runs[0].clone();
        run.head.marks[0].generation -= 1;
        let payload = if transport == Transport::Tcp {
            run.bytes.concat()
        } else {
            Vec::new()
        };
        let words = [Frame::Pages(run.head).encode(payload.len()), payload].concat();
        scene.raw.say_bytes(&words).await;
        let error = scene.fails(CloseReason::StalePage).await;
        assert!(
            matches!(
                error,
                TransferError::StalePage {
                    page: 4,
                    generation: 10,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(before, read(&*memory, 0, bytes));
    }
}
