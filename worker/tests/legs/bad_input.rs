//! Messages that no honest router sends: a typed refusal each, and the worker lives.

use baton_decode_worker::DecodeWorker;
use baton_prefill_worker::PrefillWorker;
use baton_proto::v1;
use baton_proto::v1::decode_request::Message as DecodeMessage;
use baton_proto::v1::prefill_request::Message as PrefillMessage;
use tonic::Code;

use crate::support::gate::Gate;
use crate::support::node::{Node, Wish};
use crate::support::prompt;
use crate::support::router::{Ask, DecodeLeg, PrefillLeg, local, reason, split};

async fn pair() -> (Node, Node) {
    let prefill = Node::start::<PrefillWorker>(Wish {
        name: "p",
        ..Wish::default()
    })
    .await;
    let wish = Wish {
        name: "d",
        gate: Gate::open(),
        ..Wish::default()
    };
    (prefill, Node::start::<DecodeWorker>(wish).await)
}

type Spoil = fn(&mut v1::SequenceSpec);
type SpoilGrant = fn(&mut v1::Grant);

const HOSTILE: [(&str, Spoil); 14] = [
    ("no prompt", |spec| spec.prompt_ids.clear()),
    ("a prompt beyond the context", |spec| {
        spec.prompt_ids = vec![5; 2048];
    }),
    ("a huge prompt", |spec| spec.prompt_ids = vec![5; 500_000]),
    ("an unknown token", |spec| spec.prompt_ids = vec![512]),
    ("no sampling", |spec| spec.sampling = None),
    ("n = 10^9", |spec| sampling(spec).n = Some(1_000_000_000)),
    ("max_tokens = 2^31", |spec| {
        sampling(spec).max_tokens = Some(1 << 31);
    }),
    ("max_tokens = 0", |spec| sampling(spec).max_tokens = Some(0)),
    ("a NaN", |spec| sampling(spec).temperature = Some(f32::NAN)),
    ("100,000 stop ids", |spec| {
        sampling(spec).stop_token_ids = vec![1; 100_000];
    }),
    ("completions of other choices", |spec| {
        spec.completions = vec![v1::Completion::default(); 9];
    }),
    ("a long salt", |spec| spec.cache_salt = vec![0; 100_000]),
    ("a long id", |spec| spec.request_id = "x".repeat(1 << 20)),
    ("no time", |spec| spec.deadline_ms = 0),
];

fn sampling(spec: &mut v1::SequenceSpec) -> &mut v1::SamplingOptions {
    spec.sampling.as_mut().expect("sampling")
}

#[tokio::test(flavor = "multi_thread")]
async fn sec_02_hostile_starts_are_refused_before_anything_is_reserved() {
    let (prefill, decode) = pair().await;
    let ask = Ask::greedy(prompt(1, 20), 4);
    for (what, spoil) in HOSTILE {
        let mut spec: v1::SequenceSpec = ask.spec(&prefill).into();
        spoil(&mut spec);
        let start = v1::PrefillStart {
            spec: Some(spec),
            hand_off: true,
        };
        let first = v1::PrefillRequest {
            message: Some(PrefillMessage::Start(start)),
        };
        let mut leg = PrefillLeg::open_raw(&prefill, first).await.unwrap();
        let status = leg.next().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status:?}");
        assert_eq!(reason(&status), "malformed", "{what}");

        for local_prefill in [false, true] {
            let mut spec: v1::SequenceSpec = ask.spec(&decode).into();
            spoil(&mut spec);
            let start = v1::DecodeStart {
                spec: Some(spec),
                local_prefill,
            };
            let first = v1::DecodeRequest {
                message: Some(DecodeMessage::Start(start)),
            };
            let mut leg = DecodeLeg::open_raw(&decode, first).await.unwrap();
            let status = leg.next().await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status:?}");
        }
    }
    for node in [&prefill, &decode] {
        node.until_idle().await;
        assert_eq!(node.load().await.pages.free, 128);
    }
    let got = split(&prefill, &decode, &ask).await.unwrap();
    assert_eq!(got.ids(), local(&decode, &ask).await.unwrap().ids());
}

#[tokio::test(flavor = "multi_thread")]
async fn sec_02_hostile_grants_end_the_leg_before_anything_is_allocated() {
    let (prefill, decode) = pair().await;
    let ask = Ask::greedy(prompt(1, 100), 4);
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    let good: v1::Grant = second.granted().await.unwrap().into();
    let hostile: [(&str, SpoilGrant); 7] = [
        ("reused_pages = 2^31", |grant| grant.reused_pages = 1 << 31),
        ("300,000 slots", |grant| {
            grant.slots = vec![v1::PageSlot::default(); 300_000];
        }),
        ("a short id", |grant| grant.transfer_id.truncate(3)),
        ("a long secret", |grant| grant.secret = vec![0; 100_000]),
        ("no fingerprint", |grant| grant.fingerprint = None),
        ("an unknown transport", |grant| {
            grant.endpoints[0].transport = "pigeon".into();
        }),
        ("attempt 0", |grant| grant.attempt = 0),
    ];
    for (what, spoil) in hostile {
        let mut grant = good.clone();
        spoil(&mut grant);
        let start = v1::PrefillStart {
            spec: Some(ask.spec(&prefill).into()),
            hand_off: true,
        };
        let first = v1::PrefillRequest {
            message: Some(PrefillMessage::Start(start)),
        };
        let mut leg = PrefillLeg::open_raw(&prefill, first).await.unwrap();
        leg.raw(v1::PrefillRequest {
            message: Some(PrefillMessage::Grant(grant)),
        });
        let status = loop {
            match leg.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{what}: a silent end"),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status:?}");
        prefill.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sec_02_messages_out_of_order_are_refused() {
    let (prefill, decode) = pair().await;
    let ask = Ask::greedy(prompt(1, 20), 4);
    let empty = PrefillLeg::open_raw(&prefill, v1::PrefillRequest { message: None }).await;
    let status = empty.unwrap().next().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);

    let cancel = DecodeMessage::CancelChoice(v1::CancelChoice { choice: 0 });
    let first = v1::DecodeRequest {
        message: Some(cancel),
    };
    let status = DecodeLeg::open_raw(&decode, first)
        .await
        .unwrap()
        .next()
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "unexpected_message")
    );

    let mut leg = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    leg.granted().await.unwrap();
    leg.cancel(3);
    let status = leg.next().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "choice 3 of 1");

    let many = Ask::greedy(prompt(1, 20), 5);
    let mut leg = PrefillLeg::open(&prefill, &many, false).await.unwrap();
    let status = leg.next().await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "no_hand_off")
    );
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sec_03_equal_request_ids_are_two_requests() {
    let (prefill, decode) = pair().await;
    let one = Ask::greedy(prompt(1, 50), 12);
    let two = Ask::greedy(prompt(2, 70), 12);
    assert_eq!(one.id, two.id);
    let (first, second) = tokio::join!(
        split(&prefill, &decode, &one),
        split(&prefill, &decode, &two)
    );
    assert_eq!(
        first.unwrap().ids(),
        local(&decode, &one).await.unwrap().ids()
    );
    assert_eq!(
        second.unwrap().ids(),
        local(&decode, &two).await.unwrap().ids()
    );
    // And used again right after.
    assert_eq!(split(&prefill, &decode, &one).await.unwrap().ids().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_fit_is_told_apart_from_what_does_not_fit_now() {
    let wish = Wish {
        pages: 8,
        ..Wish::default()
    };
    let decode = Node::start::<DecodeWorker>(wish).await;
    let never = Ask::greedy(prompt(1, 200), 4);
    for local_prefill in [false, true] {
        let mut leg = DecodeLeg::open(&decode, &never, local_prefill)
            .await
            .unwrap();
        let status = leg.next().await.unwrap_err();
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::InvalidArgument, "never_fits")
        );
    }
    let fits = Ask::greedy(prompt(1, 100), 4);
    let mut holder = DecodeLeg::open(&decode, &fits, false).await.unwrap();
    holder.granted().await.unwrap();
    let other = Ask::greedy(prompt(2, 100), 4);
    let mut leg = DecodeLeg::open(&decode, &other, false).await.unwrap();
    let status = leg.next().await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::ResourceExhausted, "no_room")
    );
    drop(holder);
    decode.until_idle().await;
    assert_eq!(local(&decode, &other).await.unwrap().ids()[0].len(), 4);
}
