//! The frame codec: round trips, limits, garbage.

use baton_proto::ids::{Attempt, Incarnation, TransferId, TransferSecret};
use baton_proto::limits::{MAX_CANONICAL_BYTES, MAX_NAME_BYTES};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use super::support::{fingerprint, layout};
use crate::error::{CloseReason, Refusal};
use crate::frame::*;

fn key() -> AttemptKey {
    AttemptKey {
        transfer_id: TransferId([7; 16]),
        attempt: Attempt(3),
    }
}

fn head(count: usize) -> PagesHead {
    let marks = (0..count as u32)
        .map(|i| PageMark {
            generation: i,
            checksum: !i,
        })
        .collect();
    PagesHead {
        key: key(),
        layer: 2,
        position: 5,
        page: 9,
        marks,
    }
}

fn samples() -> Vec<Frame> {
    let hello = Hello {
        key: key(),
        secret: TransferSecret([9; 32]),
        sender: Incarnation(1),
        receiver: Incarnation(2),
        host_id: "host".to_owned(),
        wants_memory: true,
        slots_digest: [8; 32],
        fingerprint: fingerprint(&layout(8)),
    };
    let welcome = Welcome {
        receiver: Incarnation(2),
        credit_bytes: 1 << 40,
        pool_pages: 77,
        piece_bytes: 12_288,
        memory_attached: false,
    };
    let manifest = Manifest {
        pages: 4,
        reused_pages: 1,
        layers: 30,
        piece_bytes: 12_288,
        prompt_tokens: 70,
        bytes: 1 << 33,
    };
    let commit = Commit {
        pieces: 120,
        bytes: 99,
        digest: [5; 32],
        payload: vec![1, 2, 3],
    };
    let refusals = [
        Refusal::Incarnation {
            wanted: Incarnation(3),
            found: Incarnation(4),
        },
        Refusal::Fingerprint(vec!["rope".to_owned(), "layers".to_owned()]),
        Refusal::Unknown,
        Refusal::Closed(CloseReason::Expired),
        Refusal::Attempt {
            wanted: 1,
            found: 2,
        },
        Refusal::Secret,
        Refusal::Slots,
        Refusal::AlreadyUsed,
        Refusal::OtherUser,
        Refusal::OtherHost,
        Refusal::Quarantine { pages: 9, cap: 8 },
        Refusal::Malformed,
    ];
    let mut frames = vec![
        Frame::Hello(Box::new(hello)),
        Frame::Welcome(welcome),
        Frame::Open(key(), manifest),
        Frame::Pages(head(1)),
        Frame::Pages(head(MAX_RUN_PAGES)),
        Frame::KeepAlive(key()),
        Frame::Credit(key(), 1 << 50),
        Frame::Commit(key(), commit),
        Frame::CommitAck(key()),
        Frame::Revoke(key()),
        Frame::RevokeAck(key()),
    ];
    frames.extend(refusals.map(Frame::Refused));
    frames.extend(
        (1..=10)
            .filter_map(CloseReason::from_code)
            .map(|reason| Frame::Closed(key(), reason)),
    );
    frames
}

#[test]
fn every_frame_survives_the_wire_and_no_front_of_it_is_a_frame() {
    for frame in samples() {
        let bytes = frame.encode(0);
        for length in 0..bytes.len() {
            assert_eq!(
                decode_frame(&bytes[..length]),
                Ok(None),
                "{} cut to {length}",
                frame.name()
            );
        }
        let mut longer = bytes.clone();
        longer.push(0xff);
        let decoded = decode_frame(&longer).expect("frame").expect("whole");
        assert_eq!(
            (&decoded.frame, decoded.consumed, decoded.payload_bytes),
            (&frame, bytes.len(), 0)
        );
    }
}

/// What registers can also be paired.
#[test]
fn a_hello_carries_texts_as_long_as_a_registration_may_have() {
    let mut all = samples();
    let Frame::Hello(hello) = &mut all[0] else {
        panic!("the first sample is a Hello");
    };
    hello.host_id = "h".repeat(MAX_NAME_BYTES);
    hello.fingerprint.kv_dtype = "k".repeat(MAX_NAME_BYTES);
    hello.fingerprint.layout = "l".repeat(MAX_CANONICAL_BYTES);
    hello.fingerprint.rope = "r".repeat(MAX_CANONICAL_BYTES);
    hello.fingerprint.numerics = "n".repeat(MAX_CANONICAL_BYTES);
    let bytes = all[0].encode(0);
    let decoded = decode_frame(&bytes).expect("frame").expect("whole");
    assert_eq!(decoded.frame, all[0]);
}

#[test]
fn xfr_21_bodies_at_below_and_above_their_limits() {
    // Pages: payload up to exactly the limit; `MAX_RUN_PAGES` divides it.
    for (payload, fits) in [
        (MAX_PAYLOAD_BYTES - MAX_RUN_PAGES, true),
        (MAX_PAYLOAD_BYTES, true),
        (MAX_PAYLOAD_BYTES + MAX_RUN_PAGES, false),
    ] {
        let bytes = Frame::Pages(head(MAX_RUN_PAGES)).encode(payload);
        match decode_frame(&bytes) {
            Ok(Some(decoded)) => assert!(fits && decoded.payload_bytes == payload),
            other => assert!(!fits && other.is_err(), "{payload}: {other:?}"),
        }
    }
    // Payload that does not divide into pieces: a page was cut.
    let cut = Frame::Pages(head(3)).encode(3 * 100 - 1);
    assert!(matches!(
        decode_frame(&cut),
        Err(FrameError::Value {
            what: "payload bytes",
            ..
        })
    ));
    // Commit.
    for (length, fits) in [
        (MAX_COMMIT_PAYLOAD_BYTES - 1, true),
        (MAX_COMMIT_PAYLOAD_BYTES, true),
        (MAX_COMMIT_PAYLOAD_BYTES + 1, false),
    ] {
        let commit = Commit {
            pieces: 1,
            bytes: 1,
            digest: [0; 32],
            payload: vec![3; length],
        };
        let decoded = decode_frame(&Frame::Commit(key(), commit).encode(0));
        assert_eq!(decoded.is_ok(), fits, "{length}: {decoded:?}");
    }
}

#[test]
fn xfr_21_limits_are_judged_on_the_header_alone() {
    for kind in 0..=255u8 {
        let mut header = [0xff, 0xff, 0xff, 0xff, FRAME_VERSION, kind, 0, 0];
        assert!(decode_frame(&header).is_err(), "kind {kind} of 4 GiB");
        header[4] = FRAME_VERSION + 1;
        assert_eq!(
            decode_frame(&header),
            Err(FrameError::Version {
                found: FRAME_VERSION + 1
            })
        );
    }
}

#[test]
fn sec_02_sizes_from_the_wire_never_allocate() {
    // A run of 2^32 - 1 pages, a position and a page index that overflow.
    let mut bytes = Frame::Pages(head(1)).encode(0);
    let count_at = HEADER_BYTES + 20 + 12;
    bytes[count_at..count_at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(
        decode_frame(&bytes),
        Err(FrameError::Value {
            what: "pages in a run",
            ..
        })
    ));
    for (at, what) in [(24, "last position"), (28, "last page")] {
        let mut bytes = Frame::Pages(head(2)).encode(0);
        bytes[HEADER_BYTES + at..HEADER_BYTES + at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(
            matches!(decode_frame(&bytes), Err(FrameError::Value { what: found, .. }) if found == what)
        );
    }
}

#[test]
fn xfr_24_garbage_and_spoiled_frames_never_panic() {
    let seed = 24;
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let samples = samples();
    let mut refused = 0;
    for round in 0..60_000 {
        let bytes = if round % 3 == 0 {
            let mut bytes = vec![0; random.random_range(0..200)];
            random.fill_bytes(&mut bytes);
            if bytes.len() > 5 && random.random() {
                bytes[4] = FRAME_VERSION;
                bytes[5] = random.random_range(0..14);
                bytes[1..4].fill(0);
            }
            bytes
        } else {
            let mut bytes = samples[random.random_range(0..samples.len())].encode(0);
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] ^= 1 << random.random_range(0..8);
            }
            bytes.truncate(random.random_range(0..=bytes.len()));
            bytes
        };
        match decode_frame(&bytes) {
            Ok(Some(decoded)) => {
                assert!(
                    decoded.consumed <= bytes.len() && decoded.payload_bytes <= MAX_PAYLOAD_BYTES
                );
            }
            Ok(None) => assert!(bytes.len() < MAX_BODY_BYTES + HEADER_BYTES),
            Err(_) => refused += 1,
        }
        refused += usize::from(decode_hello(&bytes).is_err());
    }
    assert!(refused > 60_000);
}
