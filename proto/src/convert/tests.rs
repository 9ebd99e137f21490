//! Round trips and refusals of the conversions.

use std::time::Duration;

use baton_sampling::{SamplingParams, TokenLogprobs};
use prost::Message as _;

use crate::domain::{
    CommitPayload, Completion, Fingerprint, FinishReason, GeneratedToken, Grant, Ledger, PageSlot,
    PromptLogprobs, SequenceSpec, TransferEndpoint, Transport, WorkerInfo, WorkerLoad, WorkerRole,
};
use crate::ids::{Attempt, Incarnation, RequestId, SpanRef, TransferId, TransferSecret, WorkerId};
use crate::legs::{
    DecodeCommand, DecodeEvent, DecodeReport, PrefillCommand, PrefillEvent, PrefillReport,
    Scheduled,
};
use crate::{
    AdmissionDefaults, ConvertError, PeerMessage, SequenceLimits, overloaded, retry_after,
    sampling_from_wire, sampling_to_wire, stop_strings_from_wire, v1,
};

const LIMITS: SequenceLimits = SequenceLimits {
    vocabulary: 100,
    context_length: 64,
};
const DEFAULTS: AdmissionDefaults = AdmissionDefaults {
    seed: 7,
    max_tokens: 20,
};

fn fingerprint() -> Fingerprint {
    Fingerprint {
        protocol_version: 1,
        weights_digest: [1; 32],
        metadata_digest: [2; 32],
        tokenizer_digest: [3; 32],
        kv_dtype: "bf16".into(),
        page_size: 16,
        layers: 2,
        kv_heads: 1,
        head_dim: 8,
        layout: "layer-major/k-then-v/1".into(),
        rope: "theta=10000".into(),
        numerics: "cpu/1".into(),
    }
}

fn token() -> GeneratedToken {
    GeneratedToken {
        attempt: Attempt(2),
        choice: 1,
        position: 3,
        token_id: 9,
        logprobs: Some(TokenLogprobs {
            chosen: -0.5,
            top: vec![(9, -0.5), (1, -2.0)],
        }),
        finish: Some(FinishReason::Length),
    }
}

fn prompt_logprobs() -> PromptLogprobs {
    PromptLogprobs {
        attempt: Attempt(2),
        position: 1,
        entries: vec![
            TokenLogprobs {
                chosen: -0.5,
                top: vec![(9, -0.5), (1, -2.0)],
            },
            TokenLogprobs::default(),
        ],
    }
}

fn grant() -> Grant {
    Grant {
        transfer_id: TransferId([4; 16]),
        attempt: Attempt(1),
        incarnation: Incarnation(5),
        slots: vec![PageSlot {
            page: 3,
            generation: 8,
        }],
        fingerprint: fingerprint(),
        reused_pages: 2,
        endpoints: vec![TransferEndpoint {
            transport: Transport::Tcp,
            address: "127.0.0.1:9".into(),
            host_id: "host".into(),
        }],
        secret: TransferSecret([6; 32]),
        lease: Duration::from_millis(2500),
        span: Some(SpanRef([7; 25])),
    }
}

fn spec() -> SequenceSpec {
    SequenceSpec {
        request_id: RequestId("r-1".into()),
        incarnation: Incarnation(5),
        fingerprint_digest: fingerprint().digest(),
        prompt_ids: vec![1, 2, 3],
        completions: vec![
            Completion {
                token_ids: vec![4],
                ended: false,
            },
            Completion {
                token_ids: vec![5, 6],
                ended: true,
            },
        ],
        params: SamplingParams {
            temperature: 0.7,
            choices: 2,
            seed: u64::MAX,
            max_tokens: 12,
            logprobs: Some(2),
            prompt_logprobs: Some(3),
            logit_bias: [(3, -1.5)].into(),
            stop_token_ids: vec![8],
            ..SamplingParams::default()
        },
        cache_salt: b"salt".to_vec(),
        time_left: Duration::from_millis(1500),
        attempt: Attempt(1),
    }
}

fn info() -> WorkerInfo {
    WorkerInfo {
        worker_id: WorkerId::new("p-0").unwrap(),
        incarnation: Incarnation(77),
        role: WorkerRole::Prefill,
        address: "[::1]:4000".into(),
        fingerprint: fingerprint(),
        model: "tiny".into(),
        pages_total: 10,
        max_batch: 4,
        context_length: 64,
        pid: 1,
        host_id: "host".into(),
        version: "0.1.0".into(),
    }
}

fn load() -> WorkerLoad {
    WorkerLoad {
        queued: 1,
        running: 2,
        queued_tokens: 30,
        pages: Ledger {
            total: 10,
            free: 4,
            cached: 3,
            live: 2,
            granted: 1,
            quarantined: 0,
        },
        step_us: 900,
        draining: true,
        counters: vec![("a".into(), 1), ("b".into(), 2)],
    }
}

#[test]
fn everything_survives_the_round_trip() {
    let wire = v1::SequenceSpec::from(spec());
    assert_eq!(SequenceSpec::from_wire(wire, &LIMITS).unwrap(), spec());
    assert_eq!(
        GeneratedToken::try_from(v1::GeneratedToken::from(token())).unwrap(),
        token()
    );
    assert_eq!(Grant::try_from(v1::Grant::from(grant())).unwrap(), grant());
    assert_eq!(
        WorkerInfo::try_from(v1::WorkerInfo::from(info())).unwrap(),
        info()
    );
    assert_eq!(
        WorkerLoad::try_from(v1::WorkerLoad::from(load())).unwrap(),
        load()
    );
    let commit = CommitPayload {
        first_tokens: vec![token()],
        running_choices: vec![0, 2],
        span: Some(SpanRef([8; 25])),
    };
    assert_eq!(
        CommitPayload::try_from(v1::CommitPayload::from(commit.clone())).unwrap(),
        commit
    );
}

#[test]
fn legs_survive_the_round_trip() {
    for command in [
        PrefillCommand::Start {
            spec: Box::new(spec()),
            hand_off: true,
        },
        PrefillCommand::Grant(Box::new(grant())),
    ] {
        let wire = v1::PrefillRequest::from(command.clone());
        assert_eq!(PrefillCommand::from_wire(wire, &LIMITS).unwrap(), command);
    }
    for command in [
        DecodeCommand::Start {
            spec: Box::new(spec()),
            local_prefill: true,
        },
        DecodeCommand::CancelChoice(1),
    ] {
        let wire = v1::DecodeRequest::from(command.clone());
        assert_eq!(DecodeCommand::from_wire(wire, &LIMITS).unwrap(), command);
    }
    let scheduled = Scheduled {
        cached_tokens: 16,
        queue: Duration::from_micros(5),
    };
    let report = PrefillReport {
        prefill: Duration::from_micros(10),
        transfer_bytes: 100,
        bytes_before_last_step: 90,
        transport: Some(Transport::Shm),
        committed: true,
        ..PrefillReport::default()
    };
    for event in [
        PrefillEvent::Scheduled(scheduled),
        PrefillEvent::FirstToken(token()),
        PrefillEvent::PromptLogprobs(prompt_logprobs()),
        PrefillEvent::Done(report),
        PrefillEvent::TransferFailed {
            attempt: Attempt(1),
            reason: "torn".into(),
        },
    ] {
        let wire = v1::PrefillResponse::from(event.clone());
        assert_eq!(PrefillEvent::try_from(wire).unwrap(), event);
    }
    for event in [
        DecodeEvent::Grant(Box::new(grant())),
        DecodeEvent::Landed {
            attempt: Attempt(1),
            first_tokens: vec![token()],
        },
        DecodeEvent::Token(token()),
        DecodeEvent::PromptLogprobs(prompt_logprobs()),
        DecodeEvent::Done(DecodeReport {
            preemptions: 1,
            ..DecodeReport::default()
        }),
        DecodeEvent::Scheduled(scheduled),
    ] {
        let wire = v1::DecodeResponse::from(event.clone());
        assert_eq!(DecodeEvent::try_from(wire).unwrap(), event);
    }
}

#[test]
fn absent_options_take_the_documented_defaults() {
    let params = sampling_from_wire(&v1::SamplingOptions::default(), DEFAULTS, 100).unwrap();
    let expected = SamplingParams {
        temperature: 1.0,
        seed: 7,
        max_tokens: 20,
        ..SamplingParams::default()
    };
    assert_eq!(params, expected);
    let wire = sampling_to_wire(&params);
    assert_eq!(sampling_from_wire(&wire, DEFAULTS, 100).unwrap(), expected);
}

/// A value that the protocol itself refuses: the field and a part of the message.
fn refused_options(change: impl Fn(&mut v1::SamplingOptions)) -> ConvertError {
    let mut options = v1::SamplingOptions::default();
    change(&mut options);
    sampling_from_wire(&options, DEFAULTS, 100).unwrap_err()
}

#[test]
fn smp_05_options_out_of_range_name_the_field() {
    let fields = [
        refused_options(|o| o.temperature = Some(f32::NAN)),
        refused_options(|o| o.n = Some(0)),
        refused_options(|o| o.max_tokens = Some(0)),
        refused_options(|o| o.presence_penalty = 99.0),
        refused_options(|o| o.logprobs = Some(21)),
        refused_options(|o| o.prompt_logprobs = Some(21)),
        refused_options(|o| o.logit_bias = [(100, 1.0)].into()),
        refused_options(|o| o.logit_bias = (0..301).map(|id| (id, 1.0)).collect()),
        refused_options(|o| o.stop_token_ids = vec![1; 65]),
    ]
    .map(|error| error.field());
    let expected = [
        "temperature",
        "n",
        "max_tokens",
        "presence_penalty",
        "logprobs",
        "prompt_logprobs",
        "logit_bias",
        "logit_bias",
        "stop_token_ids",
    ];
    assert_eq!(fields, expected);
}

#[test]
fn smp_16_stop_strings_are_bounded_and_not_empty() {
    let with = |stop: Vec<String>| v1::SamplingOptions {
        stop,
        ..Default::default()
    };
    assert_eq!(
        stop_strings_from_wire(&with(vec!["a".into()])).unwrap(),
        ["a"]
    );
    for stop in [
        vec![String::new()],
        vec!["x".into(); 5],
        vec!["x".repeat(257)],
    ] {
        assert_eq!(
            stop_strings_from_wire(&with(stop)).unwrap_err().field(),
            "stop"
        );
    }
}

fn refused_spec(change: impl Fn(&mut v1::SequenceSpec)) -> &'static str {
    let mut wire = v1::SequenceSpec::from(spec());
    change(&mut wire);
    SequenceSpec::from_wire(wire, &LIMITS).unwrap_err().field()
}

#[test]
fn smp_13_a_sequence_is_checked_against_model_and_protocol() {
    assert_eq!(refused_spec(|s| s.prompt_ids = vec![1; 64]), "prompt_ids");
    assert_eq!(refused_spec(|s| s.prompt_ids = vec![100]), "prompt_ids");
    assert_eq!(refused_spec(|s| s.prompt_ids.clear()), "prompt_ids");
    assert_eq!(
        refused_spec(|s| s.request_id = "x".repeat(129)),
        "request_id"
    );
    assert_eq!(
        refused_spec(|s| s.request_id = "a\r\nb".into()),
        "request_id"
    );
    assert_eq!(
        refused_spec(|s| s.fingerprint_digest.truncate(31)),
        "fingerprint_digest"
    );
    assert_eq!(refused_spec(|s| s.sampling = None), "sampling");
    assert_eq!(
        refused_spec(|s| s.sampling.as_mut().unwrap().seed = None),
        "sampling.seed"
    );
    assert_eq!(refused_spec(|s| s.completions.truncate(1)), "completions");
    assert_eq!(
        refused_spec(|s| s.completions[0].token_ids = vec![1; 13]),
        "completions"
    );
    assert_eq!(refused_spec(|s| s.cache_salt = vec![0; 257]), "cache_salt");
    assert_eq!(refused_spec(|s| s.deadline_ms = 0), "deadline_ms");
    assert_eq!(refused_spec(|s| s.attempt = 0), "attempt");
}

#[test]
fn sec_02_grants_are_bounded() {
    let refused = |change: &dyn Fn(&mut v1::Grant)| {
        let mut wire = v1::Grant::from(grant());
        change(&mut wire);
        Grant::try_from(wire).unwrap_err().field()
    };
    assert_eq!(
        refused(&|g| g.transfer_id = vec![0; 15]),
        "grant.transfer_id"
    );
    assert_eq!(refused(&|g| g.secret = vec![0; 33]), "grant.secret");
    assert_eq!(
        refused(&|g| g.reused_pages = u32::MAX),
        "grant.reused_pages"
    );
    assert_eq!(refused(&|g| g.lease_ms = 0), "grant.lease_ms");
    assert_eq!(refused(&|g| g.fingerprint = None), "grant.fingerprint");
    assert_eq!(
        refused(&|g| g.endpoints = vec![g.endpoints[0].clone(); 9]),
        "grant.endpoints"
    );
    assert_eq!(
        refused(&|g| g.endpoints[0].transport = "rdma".into()),
        "transport"
    );
    assert_eq!(
        refused(&|g| g.endpoints[0].address = "x".repeat(257)),
        "endpoint.address"
    );
    let slots = vec![v1::PageSlot::default(); (1 << 17) + 1];
    assert_eq!(refused(&|g| g.slots = slots.clone()), "grant.slots");
    assert_eq!(refused(&|g| g.span = vec![1; 24]), "grant.span");
}

#[test]
fn registrations_are_checked() {
    let refused = |change: &dyn Fn(&mut v1::WorkerInfo)| {
        let mut wire = v1::WorkerInfo::from(info());
        change(&mut wire);
        WorkerInfo::try_from(wire).unwrap_err().field()
    };
    for id in ["", "a/b", "../x", "a b", &"x".repeat(65)] {
        assert_eq!(refused(&|i| i.worker_id = id.into()), "worker_id");
    }
    for address in [
        "no-port",
        "h:0",
        "h:65536",
        "a b:1",
        "::1:80",
        "http://h:1",
        "[zz]:1",
    ] {
        assert_eq!(refused(&|i| i.address = address.into()), "address");
    }
    assert_eq!(refused(&|i| i.role = 0), "role");
    assert_eq!(refused(&|i| i.role = 9), "role");
    assert_eq!(refused(&|i| i.incarnation = 0), "incarnation");
    assert_eq!(refused(&|i| i.pages_total = u32::MAX), "pages_total");
    assert_eq!(refused(&|i| i.model = "a\nb".into()), "model");
    let page_size = |i: &mut v1::WorkerInfo| i.fingerprint.as_mut().unwrap().page_size = 0;
    assert_eq!(refused(&page_size), "fingerprint.page_size");
}

#[test]
fn rte_08_absurd_loads_are_refused() {
    let refused = |change: &dyn Fn(&mut v1::WorkerLoad)| {
        let mut wire = v1::WorkerLoad::from(load());
        change(&mut wire);
        WorkerLoad::try_from(wire).unwrap_err().field()
    };
    assert_eq!(refused(&|l| l.queued = u32::MAX), "queued");
    assert_eq!(refused(&|l| l.queued_tokens = u64::MAX), "queued_tokens");
    assert_eq!(refused(&|l| l.step_us = u32::MAX), "step_us");
    assert_eq!(refused(&|l| l.pages.as_mut().unwrap().free = 5), "pages");
    assert_eq!(refused(&|l| l.pages = None), "pages");
    let many = |l: &mut v1::WorkerLoad| l.counters = (0..257).map(|n| (n.to_string(), 1)).collect();
    assert_eq!(refused(&many), "counters");
}

#[test]
fn tokens_and_commits_are_checked() {
    let refused = |change: &dyn Fn(&mut v1::GeneratedToken)| {
        let mut wire = v1::GeneratedToken::from(token());
        change(&mut wire);
        GeneratedToken::try_from(wire).unwrap_err().field()
    };
    assert_eq!(refused(&|t| t.choice = 16), "choice");
    assert_eq!(refused(&|t| t.position = u32::MAX), "token.position");
    assert_eq!(refused(&|t| t.finish_reason = 7), "finish_reason");
    assert_eq!(
        refused(&|t| t.logprobs.as_mut().unwrap().chosen = f32::NAN),
        "logprobs"
    );
    let refused = |change: &dyn Fn(&mut v1::PromptLogprobs)| {
        let mut wire = v1::PromptLogprobs::from(prompt_logprobs());
        change(&mut wire);
        PromptLogprobs::try_from(wire).unwrap_err().field()
    };
    // The first token of a prompt has none.
    assert_eq!(refused(&|p| p.position = 0), "prompt_logprobs.position");
    assert_eq!(
        refused(&|p| p.position = u32::MAX),
        "prompt_logprobs.position"
    );
    assert_eq!(refused(&|p| p.logprobs.clear()), "prompt_logprobs.entries");
    assert_eq!(
        refused(&|p| p.logprobs = vec![p.logprobs[0].clone(); 1025]),
        "prompt_logprobs.entries"
    );
    assert_eq!(
        refused(&|p| p.logprobs[0].top = vec![p.logprobs[0].top[0].clone(); 21]),
        "logprobs.top"
    );
    assert_eq!(refused(&|p| p.logprobs[1].chosen = 0.1), "logprobs");
    let unordered = v1::CommitPayload {
        first_tokens: vec![],
        running_choices: vec![2, 1],
        span: vec![],
    };
    assert_eq!(
        CommitPayload::try_from(unordered).unwrap_err().field(),
        "commit.running_choices"
    );
    let cut = v1::CommitPayload {
        span: vec![1; 26],
        ..v1::CommitPayload::default()
    };
    assert_eq!(
        CommitPayload::try_from(cut).unwrap_err().field(),
        "commit.span"
    );
}

/// Decoding and converting arbitrary bytes yields a value or an error, never a panic.
#[test]
fn xfr_24_random_bytes_never_panic() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let start = || Box::new(spec());
    let valid = [
        v1::PrefillRequest::from(PrefillCommand::Grant(Box::new(grant()))).encode_to_vec(),
        v1::PrefillResponse::from(PrefillEvent::FirstToken(token())).encode_to_vec(),
        v1::DecodeRequest::from(DecodeCommand::Start {
            spec: start(),
            local_prefill: false,
        })
        .encode_to_vec(),
        v1::DecodeResponse::from(DecodeEvent::Grant(Box::new(grant()))).encode_to_vec(),
        v1::Grant::from(grant()).encode_to_vec(),
        v1::CommitPayload::from(CommitPayload {
            first_tokens: vec![token()],
            running_choices: vec![0],
            span: Some(SpanRef([9; 25])),
        })
        .encode_to_vec(),
        v1::WorkerInfo::from(info()).encode_to_vec(),
        v1::WorkerLoad::from(load()).encode_to_vec(),
        sampling_to_wire(&spec().params).encode_to_vec(),
    ];
    for (kind, bytes) in PeerMessage::ALL.into_iter().zip(&valid) {
        assert!(kind.accepts(bytes, LIMITS), "{kind:?}");
    }
    for round in 0..20_000 {
        let mut bytes = valid[round % valid.len()].clone();
        for _ in 0..=next() % 4 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes.truncate(bytes.len() - next() as usize % 8);
        for kind in PeerMessage::ALL {
            kind.accepts(&bytes, LIMITS);
        }
    }
}

#[test]
fn refusals_carry_a_hint() {
    let status = overloaded("queue is full", Duration::from_millis(250));
    assert_eq!(retry_after(&status), Some(Duration::from_millis(250)));
    assert_eq!(retry_after(&tonic::Status::internal("x")), None);
    let refused: tonic::Status = ConvertError::Missing { field: "spec" }.into();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}
