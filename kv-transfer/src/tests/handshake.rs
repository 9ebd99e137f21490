//! Who is let in, and who is told why not.

use baton_proto::domain::{Fingerprint, Grant, PageSlot, Transport};
use baton_proto::ids::{Attempt, Incarnation, TransferId, TransferSecret};

use super::raw::{RawSender, hello};
use super::support::*;
use super::whole::BOTH;
use crate::checksum::slots_digest;
use crate::error::{CloseReason, Refusal, TransferError};
use crate::frame::{Frame, Hello};
use crate::receive::table::SocketFacts;
use crate::{TransportChoice, host_id};

async fn refused(
    landed: &ReceivingSide,
    transport: Transport,
    adjust: impl FnOnce(&mut Hello),
) -> Refusal {
    let (grant, _incoming) = landed.open(&[1], 0);
    let mut words = hello(&grant, &host_id());
    adjust(&mut words);
    let mut raw = RawSender::connect(&grant, transport).await;
    raw.say(&Frame::Hello(Box::new(words))).await;
    match raw.hear().await {
        Some(Frame::Refused(refusal)) => {
            assert_eq!(raw.hear().await, None, "a refused connection is closed");
            assert_eq!(landed.counter(refusal.name()), 1);
            refusal
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn xfr_01_stale_references_are_refused_each_by_name() {
    for (choice, transport) in BOTH {
        let landed = receiving(layout(16), choice).await;
        // Unknown id.
        let refusal = refused(&landed, transport, |hello| {
            hello.key.transfer_id = TransferId([9; 16]);
        })
        .await;
        assert_eq!(refusal, Refusal::Unknown);
        // Another attempt of it.
        let refusal = refused(&landed, transport, |hello| hello.key.attempt = Attempt(2)).await;
        assert_eq!(
            refusal,
            Refusal::Attempt {
                wanted: 2,
                found: 1
            }
        );
        // Another incarnation.
        let refusal = refused(&landed, transport, |hello| hello.receiver = Incarnation(5)).await;
        assert_eq!(
            refusal,
            Refusal::Incarnation {
                wanted: Incarnation(5),
                found: Incarnation(100)
            }
        );
        // Wrong secret, differing in the first and in the last byte.
        for byte in [0, 31] {
            let landed = receiving(layout(16), choice).await;
            let refusal = refused(&landed, transport, |hello| hello.secret.0[byte] ^= 1).await;
            assert_eq!(refusal, Refusal::Secret);
        }
        // A grant that has been used: a second connection, also after the first one broke.
        let (grant, mut incoming) = landed.open(&[1], 0);
        let first = RawSender::admitted(&grant, transport, landed.layout.region_bytes()).await;
        let again = hello(&grant, &host_id());
        let mut second = RawSender::connect(&grant, transport).await;
        second.say(&Frame::Hello(Box::new(again.clone()))).await;
        assert_eq!(
            second.hear().await,
            Some(Frame::Refused(Refusal::AlreadyUsed))
        );
        drop(first);
        within("outcome", incoming.outcome()).await;
        let mut third = RawSender::connect(&grant, transport).await;
        third.say(&Frame::Hello(Box::new(again))).await;
        let closed = Refusal::Closed(CloseReason::ConnectionLost);
        assert_eq!(third.hear().await, Some(Frame::Refused(closed)));
        // A grant that was dropped, and one past its lease.
        let (grant, incoming) = landed.open(&[1], 0);
        within("fence", incoming.fenced()).await;
        let mut late = RawSender::connect(&grant, transport).await;
        late.say(&Frame::Hello(Box::new(hello(&grant, &host_id()))))
            .await;
        assert_eq!(
            late.hear().await,
            Some(Frame::Refused(Refusal::Closed(CloseReason::Dropped)))
        );
        let short = receiving_with(layout(16), choice, 100, |options| {
            options.lease = std::time::Duration::from_millis(20);
        })
        .await;
        let (grant, mut incoming) = short.open(&[1], 0);
        assert_eq!(
            failure(within("outcome", incoming.outcome()).await),
            TransferError::Expired { lease_ms: 20 }
        );
        let mut late = RawSender::connect(&grant, transport).await;
        late.say(&Frame::Hello(Box::new(hello(&grant, &host_id()))))
            .await;
        assert_eq!(
            late.hear().await,
            Some(Frame::Refused(Refusal::Closed(CloseReason::Expired)))
        );
    }
}

#[tokio::test]
async fn xfr_01_forged_slots_are_refused_before_a_byte_is_written() {
    type Forgery = fn(&mut Grant);
    let forgeries: [(&str, Forgery); 4] = [
        ("a page that was not granted", |grant| {
            grant.slots[1].page = 9;
        }),
        ("another generation", |grant| grant.slots[2].generation += 1),
        ("another order", |grant| grant.slots.swap(0, 2)),
        ("a slot more", |grant| {
            let slot = grant.slots[2];
            grant.slots.push(slot);
        }),
    ];
    for (choice, transport) in BOTH {
        for (what, forge) in forgeries {
            let landed = receiving(layout(16), choice).await;
            fill_random(&*landed.memory, 7);
            let before = read(&*landed.memory, 0, landed.layout.region_bytes());
            let sent = sending(layout(16), choice, 1);
            let (grant, mut incoming) = landed.open(&[1, 2, 3], 0);
            let mut forged = grant.clone();
            forge(&mut forged);
            // Everything is ready, so that an admitted sender would write at once.
            let local: Vec<u32> = (0..forged.slots.len() as u32).collect();
            let tokens = 16 * forged.slots.len() as u32;
            let progress = sent.progress(tokens, &local);
            advance_all(&progress, &sent.layout, tokens);
            let outgoing = sent.sender.begin(forged, progress);
            let error = within("commit", outgoing.commit(Vec::new())).await;
            assert_eq!(
                error.expect_err(what),
                TransferError::Refused(Refusal::Slots)
            );
            assert_eq!(landed.counter("refused_slots"), 1, "{what}");
            let after = read(&*landed.memory, 0, landed.layout.region_bytes());
            assert!(before == after, "{what}: memory was written");
            // The real grant was not used up.
            let progress = sent.progress(48, &[0, 1, 2]);
            advance_all(&progress, &sent.layout, 48);
            within(
                "commit",
                sent.sender.begin(grant, progress).commit(Vec::new()),
            )
            .await
            .expect(what);
            committed(within("outcome", incoming.outcome()).await);
            assert_same(&sent, &landed, &[0, 1, 2], &[1, 2, 3], 0);
        }
        // The reused prefix counts too.
        let landed = receiving(layout(16), choice).await;
        let refusal = refused(&landed, transport, |hello| {
            let slot = PageSlot {
                page: 1,
                generation: 8,
            };
            assert_eq!(hello.slots_digest, slots_digest(0, &[slot]));
            hello.slots_digest = slots_digest(1, &[slot]);
        })
        .await;
        assert_eq!(refusal, Refusal::Slots);
    }
}

#[tokio::test]
async fn xfr_09_a_restarted_receiver_at_the_same_address_refuses_old_grants() {
    let old = receiving(layout(16), TransportChoice::Tcp).await;
    let (grant, _incoming) = old.open(&[1], 0);
    let address: std::net::SocketAddr = grant.endpoints[0].address.parse().expect("address");
    drop(old);
    until("the address is free", || {
        std::net::TcpListener::bind(address).is_ok()
    })
    .await;
    let new = receiving_with(layout(16), TransportChoice::Tcp, 101, |options| {
        options.listen = address;
    })
    .await;
    let sent = sending(layout(16), TransportChoice::Tcp, 1);
    let mut outgoing = sent.sender.begin(grant, sent.progress(16, &[0]));
    let error = within("failure", outgoing.failed()).await;
    let wrong = Refusal::Incarnation {
        wanted: Incarnation(100),
        found: Incarnation(101),
    };
    assert_eq!(error, TransferError::Refused(wrong));
    assert_eq!(new.counter("refused_incarnation"), 1);
    // Its own grants work at once.
    for _ in 0..10 {
        let (grant, mut incoming) = new.open(&[1], 0);
        let progress = sent.progress(16, &[0]);
        advance_all(&progress, &sent.layout, 16);
        within(
            "commit",
            sent.sender.begin(grant, progress).commit(Vec::new()),
        )
        .await
        .expect("commit");
        committed(within("outcome", incoming.outcome()).await);
    }
}

#[tokio::test]
async fn xfr_11_every_differing_field_is_named_by_both_sides() {
    type Change = fn(&mut Fingerprint);
    let changes: [(&str, Change); 12] = [
        ("protocol_version", |f| f.protocol_version += 1),
        ("weights_digest", |f| f.weights_digest[0] ^= 1),
        ("metadata_digest", |f| f.metadata_digest[0] ^= 1),
        ("tokenizer_digest", |f| f.tokenizer_digest[31] ^= 1),
        ("kv_dtype", |f| f.kv_dtype = "f32".to_owned()),
        ("page_size", |f| f.page_size = 32),
        ("layers", |f| f.layers += 1),
        ("kv_heads", |f| f.kv_heads += 1),
        ("head_dim", |f| f.head_dim += 1),
        ("layout", |f| f.layout.push('x')),
        ("rope", |f| f.rope = "plain 500000".to_owned()),
        ("numerics", |f| f.numerics.push('x')),
    ];
    for (choice, transport) in BOTH {
        for (field, change) in changes {
            let landed = receiving(layout(16), choice).await;
            let refusal = refused(&landed, transport, |hello| change(&mut hello.fingerprint)).await;
            assert_eq!(refusal, Refusal::Fingerprint(vec![field.to_owned()]));
            let sent = sending_as(layout(16), choice, 1, |identity| {
                change(&mut identity.fingerprint);
            });
            let (grant, _incoming) = landed.open(&[1], 0);
            let mut outgoing = sent.sender.begin(grant, sent.progress(16, &[0]));
            let error = within("failure", outgoing.failed()).await;
            assert_eq!(
                error,
                TransferError::Incompatible {
                    fields: vec![field.to_owned()]
                }
            );
        }
        let landed = receiving(layout(16), choice).await;
        let refusal = refused(&landed, transport, |hello| {
            hello.fingerprint.page_size = 32;
            hello.fingerprint.rope.clear();
        })
        .await;
        assert_eq!(
            refusal,
            Refusal::Fingerprint(vec!["page_size".to_owned(), "rope".to_owned()])
        );
    }
}

#[tokio::test]
async fn xfr_12_an_unknown_transfer_is_an_error_at_once() {
    for (choice, _) in BOTH {
        let landed = receiving(layout(16), choice).await;
        let sent = sending(layout(16), choice, 1);
        let (mut grant, _incoming) = landed.open(&[1], 0);
        grant.transfer_id = TransferId(rand::random());
        let mut outgoing = sent.sender.begin(grant, sent.progress(16, &[0]));
        let started = std::time::Instant::now();
        let error = within("failure", outgoing.failed()).await;
        assert_eq!(error, TransferError::Refused(Refusal::Unknown));
        assert!(
            started.elapsed() < std::time::Duration::from_secs(2),
            "no silent wait"
        );
        assert_eq!(landed.counter("refused_unknown"), 1);
    }
}

#[tokio::test]
async fn shm_is_for_the_same_host_only() {
    let landed = receiving(layout(16), TransportChoice::Shm).await;
    let refusal = refused(&landed, Transport::Shm, |hello| {
        hello.host_id = "elsewhere".to_owned();
    })
    .await;
    assert_eq!(refusal, Refusal::OtherHost);
    assert!(refusal.only_this_transport());
    let landed = receiving(layout(16), TransportChoice::Shm).await;
    let refusal = refused(&landed, Transport::Shm, |hello| hello.host_id.clear()).await;
    assert_eq!(refusal, Refusal::OtherHost);
}

#[tokio::test]
async fn a_refused_handshake_uses_nothing_up() {
    for (choice, transport) in BOTH {
        let landed = receiving(layout(16), choice).await;
        let (grant, _incoming) = landed.open(&[1], 0);
        let mut wrong = hello(&grant, &host_id());
        wrong.secret = TransferSecret([0; 32]);
        let mut raw = RawSender::connect(&grant, transport).await;
        raw.say(&Frame::Hello(Box::new(wrong))).await;
        assert_eq!(raw.hear().await, Some(Frame::Refused(Refusal::Secret)));
        RawSender::admitted(&grant, transport, landed.layout.region_bytes()).await;
    }
}

#[tokio::test]
async fn sec_02_another_user_is_refused_shm_by_the_kernels_word() {
    let landed = receiving(layout(16), TransportChoice::Shm).await;
    let (grant, _incoming) = landed.open(&[1], 0);
    let words = hello(&grant, &host_id());
    let now = std::time::Instant::now();
    let stranger = SocketFacts {
        transport: Transport::Shm,
        same_user: false,
    };
    let table = landed.receiver.table();
    assert_eq!(
        table.admit(now, &words, stranger).expect_err("refused"),
        Refusal::OtherUser
    );
    // The same words from the right user are still good: nothing was used up.
    let friend = SocketFacts {
        transport: Transport::Shm,
        same_user: true,
    };
    assert!(table.admit(now, &words, friend).is_ok());
}
