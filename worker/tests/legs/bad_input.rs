//! Messages that no honest router sends: a typed refusal each, and the worker lives.

use baton_cluster::http2;
use baton_decode_worker::DecodeWorker;
use baton_prefill_worker::PrefillWorker;
use baton_proto::v1;
use baton_proto::v1::decode_request::Message as DecodeMessage;
use baton_proto::v1::prefill_request::Message as PrefillMessage;
use prost::Message;
use tonic::Code;
use tonic::codegen::{Service as _, http};

use crate::support::gate::Gate;
use crate::support::node::{Node, Wish};
use crate::support::router::{Ask, DecodeLeg, PrefillLeg, local, reason, split};
use crate::support::{prompt, soon};

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
type SpoilOptions = fn(&mut v1::SamplingOptions);

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

#[tokio::test(flavor = "multi_thread")]
async fn smp_05_parameters_out_of_range_are_refused_by_workers_too() {
    let (prefill, decode) = pair().await;
    let ask = Ask::greedy(prompt(1, 20), 4);
    let hostile: [(&str, SpoilOptions); 14] = [
        ("temperature", |o| o.temperature = Some(-1.0)),
        ("temperature", |o| o.temperature = Some(f32::INFINITY)),
        ("top_p", |o| o.top_p = Some(0.0)),
        ("top_p", |o| o.top_p = Some(1.5)),
        ("min_p", |o| o.min_p = Some(2.0)),
        ("presence_penalty", |o| o.presence_penalty = 2.5),
        ("frequency_penalty", |o| o.frequency_penalty = f32::NAN),
        ("repetition_penalty", |o| o.repetition_penalty = Some(0.0)),
        ("logprobs", |o| o.logprobs = Some(21)),
        ("min_tokens", |o| o.min_tokens = 5),
        ("n", |o| o.n = Some(17)),
        ("logit_bias", |o| o.logit_bias.extend([(1, 101.0)])),
        ("logit_bias", |o| o.logit_bias.extend([(512, 1.0)])),
        ("logit_bias", |o| {
            o.logit_bias.extend((0..301).map(|id| (id, 1.0)));
        }),
    ];
    for (field, spoil) in hostile {
        let mut first = ask.prefill_start(&prefill, true);
        let Some(PrefillMessage::Start(start)) = &mut first.message else {
            panic!("a start message");
        };
        spoil(sampling(start.spec.as_mut().expect("a spec")));
        let mut leg = PrefillLeg::open_raw(&prefill, first).await.unwrap();
        let status = leg.next().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status:?}");
        assert!(
            status.message().contains(field),
            "{field}: {}",
            status.message()
        );

        let mut first = ask.decode_start(&decode, true);
        let Some(DecodeMessage::Start(start)) = &mut first.message else {
            panic!("a start message");
        };
        spoil(sampling(start.spec.as_mut().expect("a spec")));
        let mut leg = DecodeLeg::open_raw(&decode, first).await.unwrap();
        let status = leg.next().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status:?}");
        assert!(
            status.message().contains(field),
            "{field}: {}",
            status.message()
        );
    }
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn smp_13_a_prompt_beyond_the_context_disturbs_nobody() {
    let (prefill, decode) = pair().await;
    let short: Vec<Ask> = (0..3)
        .map(|seed| Ask::greedy(prompt(seed, 30), 40))
        .collect();
    let mut expected = Vec::new();
    for ask in &short {
        expected.push(local(&decode, ask).await.unwrap().choices);
    }
    let long = Ask::greedy(vec![5; 2048], 4);
    let running = futures::future::join_all(short.iter().map(|ask| split(&prefill, &decode, ask)));
    let refused = async {
        let mut refusals = Vec::new();
        for _ in 0..10 {
            refusals.push(split(&prefill, &decode, &long).await.unwrap_err());
            refusals.push(local(&decode, &long).await.unwrap_err());
        }
        refusals
    };
    let (got, refused) = tokio::join!(running, refused);
    for status in refused {
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(
            status.message().contains("2048") && status.message().contains("2047"),
            "{status:?}"
        );
    }
    for (got, expected) in got.into_iter().zip(expected) {
        assert_eq!(got.unwrap().choices, expected);
    }
    prefill.until_idle().await;
    decode.until_idle().await;
}

/// A message of exactly `bytes` bytes, padded in its request id.
fn sized<M: Message>(bytes: usize, mut build: impl FnMut(String) -> M) -> M {
    let overhead = build("x".repeat(bytes)).encoded_len() - bytes;
    let message = build("x".repeat(bytes - overhead));
    assert_eq!(message.encoded_len(), bytes);
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_21_messages_over_the_limit_get_a_status_and_the_connection_lives() {
    let (prefill, decode) = pair().await;
    let ask = Ask::greedy(prompt(1, 20), 4);
    let limit = http2::MAX_MESSAGE_BYTES;
    for (bytes, code, label) in [
        (limit - 1, Code::InvalidArgument, "malformed"),
        (limit, Code::InvalidArgument, "malformed"),
        (limit + 1, Code::OutOfRange, "unreadable"),
    ] {
        let first = sized(bytes, |id| {
            Ask { id, ..ask.clone() }.prefill_start(&prefill, true)
        });
        let mut leg = PrefillLeg::open_raw(&prefill, first).await.unwrap();
        let status = leg.next().await.unwrap_err();
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (code, label),
            "{bytes} bytes"
        );

        let first = sized(bytes, |id| {
            Ask { id, ..ask.clone() }.decode_start(&decode, true)
        });
        let mut leg = DecodeLeg::open_raw(&decode, first).await.unwrap();
        let status = leg.next().await.unwrap_err();
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (code, label),
            "{bytes} bytes"
        );

        // A later message of a good leg, too.
        let mut leg = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
        leg.scheduled().await.unwrap();
        leg.raw(sized(bytes, |id| {
            Ask { id, ..ask.clone() }.prefill_start(&prefill, true)
        }));
        let status = loop {
            match leg.next().await {
                Ok(event) => assert!(event.is_some(), "a silent end"),
                Err(status) => break status,
            }
        };
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (code, label),
            "{bytes} bytes"
        );

        prefill.until_idle().await;
        decode.until_idle().await;
        let got = split(&prefill, &decode, &ask).await.unwrap();
        assert_eq!(got.ids()[0].len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sec_01_compressed_messages_are_refused_unread() {
    let (prefill, decode) = pair().await;
    for (node, method) in [
        (&prefill, "PrefillService/Prefill"),
        (&decode, "DecodeService/Decode"),
        (&prefill, "WorkerService/GetWorker"),
        (&decode, "WorkerService/WatchLoad"),
        (&decode, "WorkerService/DrainWorker"),
    ] {
        // Flag 1 (compressed), a length of 1 MiB, and what nobody will inflate.
        let body = format!("\u{1}\0\u{10}\0\0{}", "z".repeat(1 << 20));
        let request = http::Request::post(format!("/baton.v1.{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-encoding", "gzip")
            .body(tonic::body::Body::new(body))
            .unwrap();
        let mut channel = node.channel.clone();
        std::future::poll_fn(|cx| channel.poll_ready(cx))
            .await
            .unwrap();
        let response = soon("an answer", channel.call(request)).await.unwrap();
        let status = response
            .headers()
            .get("grpc-status")
            .expect("an immediate status");
        assert_eq!(status, "12", "{method} is not UNIMPLEMENTED");
    }
    let ask = Ask::greedy(prompt(1, 20), 4);
    assert_eq!(
        split(&prefill, &decode, &ask).await.unwrap().ids()[0].len(),
        4
    );
    assert!(!decode.load().await.draining);
}
