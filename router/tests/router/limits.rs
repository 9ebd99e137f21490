//! Limits on what one message, one text and one client may take.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use baton_cluster::{Membership, http2};
use baton_model_file::fixtures::TinyModel;
use baton_proto::domain::Fingerprint;
use baton_proto::v1::generate_request::Input;
use baton_proto::v1::inference_service_client::InferenceServiceClient;
use baton_proto::v1::register_request::Message as Registration;
use baton_proto::v1::registry_service_client::RegistryServiceClient;
use baton_proto::{retry_after, v1};
use baton_router::RouterConfig;
use prost::Message;
use tonic::{Code, Status};

use crate::fake::{Setup, endless, fingerprint};
use crate::harness::{
    Answer, Harness, MODEL, ROOMY_MODEL, TestModel, by_ids, config, first_token, ids, long,
    prompt_of, soon, status_of,
};
use crate::raw::{INFLATED, bomb, call_compressed};

fn tokenize(text: String) -> v1::TokenizeRequest {
    v1::TokenizeRequest {
        input: Some(v1::tokenize_request::Input::Prompt(text)),
        ..Default::default()
    }
}

/// Most memory that this process has ever had, in bytes.
pub(crate) fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes = peak.unwrap().split_whitespace().nth(1).unwrap();
    kilobytes.parse::<usize>().unwrap() << 10
}

#[tokio::test]
async fn sec_01_compressed_messages_are_refused_unread() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let bomb = bomb();
    assert!(bomb.len() < http2::MAX_MESSAGE_BYTES, "{}", bomb.len());
    let channel = harness.channel();
    let before = peak_memory();
    let own = [
        "/baton.v1.InferenceService/Generate",
        "/baton.v1.InferenceService/Tokenize",
        "/baton.v1.AdminService/ListWorkers",
        "/baton.v1.AdminService/Drain",
        "/baton.v1.RegistryService/Register",
    ];
    let others = [
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ];
    for method in own.iter().chain(&others) {
        for encoding in ["gzip", "deflate", "zstd"] {
            let status = call_compressed(&channel, method, Some(encoding), &bomb).await;
            let code = status.code();
            assert_eq!(code, Code::Unimplemented, "{method} {encoding}: {status}");
        }
    }
    // The frame says that it is compressed, the header says nothing of the kind.
    for method in own {
        for encoding in [None, Some("identity")] {
            let status = call_compressed(&channel, method, encoding, &bomb).await;
            let code = status.code();
            assert_eq!(code, Code::Internal, "{method} {encoding:?}: {status}");
        }
    }
    let risen = peak_memory() - before;
    assert!(risen < INFLATED / 2, "{risen} bytes more");
    // The connection lives.
    harness.generate(long(2)).await.unwrap().whole();
}

/// A message of exactly this many bytes, filled up with a text.
fn sized<M: Message>(bytes: usize, with: impl Fn(String) -> M) -> M {
    let over = with("x".repeat(bytes)).encoded_len() - bytes;
    let message = with("x".repeat(bytes - over));
    assert_eq!(message.encoded_len(), bytes);
    message
}

/// What is wrong with a message around the limit: its size from one byte over, else its content.
fn judged(status: &Status, bytes: usize, content: Code) {
    if bytes <= http2::MAX_MESSAGE_BYTES {
        assert_eq!(status.code(), content, "{bytes}: {status}");
    } else {
        assert_eq!(status.code(), Code::OutOfRange, "{bytes}: {status}");
        let limit = http2::MAX_MESSAGE_BYTES.to_string();
        assert!(status.message().contains(&limit), "{status}");
    }
}

const AROUND_THE_LIMIT: [usize; 3] = [
    http2::MAX_MESSAGE_BYTES - 1,
    http2::MAX_MESSAGE_BYTES,
    http2::MAX_MESSAGE_BYTES + 1,
];

#[tokio::test]
async fn xfr_21_one_limit_for_messages_of_every_kind_of_call() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    for bytes in AROUND_THE_LIMIT {
        // Unary.
        let request = sized(bytes, |model| v1::TokenizeRequest {
            model,
            ..Default::default()
        });
        let answer = soon("an answer", harness.client().tokenize(request)).await;
        judged(&answer.unwrap_err(), bytes, Code::NotFound);
        let request = sized(bytes, |worker_id| v1::DrainRequest { worker_id });
        let answer = soon("an answer", harness.admin().drain(request)).await;
        judged(&answer.unwrap_err(), bytes, Code::InvalidArgument);
        // Answers are streamed.
        let request = sized(bytes, |model| v1::GenerateRequest {
            model,
            ..by_ids(vec![20], 2)
        });
        let status = status_of(harness.generate(request).await);
        judged(&status, bytes, Code::NotFound);
        // Both directions are.
        let mut registry = RegistryServiceClient::new(harness.channel());
        let info = sized(bytes, |worker_id| v1::RegisterRequest {
            message: Some(Registration::Info(v1::WorkerInfo {
                worker_id,
                ..Default::default()
            })),
        });
        let answer = soon("an answer", registry.register(tokio_stream::iter([info]))).await;
        judged(&answer.unwrap_err(), bytes, Code::InvalidArgument);
        // The connection lives.
        harness.generate(by_ids(vec![20], 2)).await.unwrap().whole();
    }
}

#[tokio::test]
async fn xfr_21_later_messages_of_a_stream_have_the_limit_too() {
    let harness = Harness::start(config()).await;
    let worker = harness.add(Setup::decode("decode-0", endless())).await;
    let mut open = Vec::new();
    for (number, bytes) in (1..).zip(AROUND_THE_LIMIT) {
        let info = v1::WorkerInfo {
            worker_id: format!("decode-{number}"),
            address: format!("127.0.0.1:{number}"),
            ..worker.info().clone().into()
        };
        let load = sized(bytes, |name| v1::RegisterRequest {
            message: Some(Registration::Load(v1::WorkerLoad {
                counters: [(name, 1)].into(),
                ..Default::default()
            })),
        });
        let info = Registration::Info(info);
        let (messages, stream) = tokio::sync::mpsc::channel(2);
        let first = v1::RegisterRequest {
            message: Some(info),
        };
        messages.send(first).await.unwrap();
        messages.send(load).await.unwrap();
        let mut registry = RegistryServiceClient::new(harness.channel());
        let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
        let mut replies = soon("accepted", registry.register(stream))
            .await
            .unwrap()
            .into_inner();
        assert!(
            soon("the answer", replies.message())
                .await
                .unwrap()
                .unwrap()
                .accepted
        );
        if bytes > http2::MAX_MESSAGE_BYTES {
            let status = soon("the end", replies.message()).await.unwrap_err();
            judged(&status, bytes, Code::Ok);
        } else {
            // Read and refused for what it says, which ends nothing.
            harness.until_counter("loads_refused", number).await;
        }
        open.push((messages, replies));
    }
}

#[tokio::test]
async fn xfr_21_answers_have_the_limit_too() {
    let config = RouterConfig {
        max_prompt_bytes: http2::MAX_MESSAGE_BYTES,
        ..config()
    };
    let harness = Harness::start(config).await;
    let vocabulary = MODEL.file.config().vocabulary;
    let length = |id: u32| MODEL.text.token_bytes(id).map_or(0, |bytes| bytes.len());
    let longest = (0..vocabulary).max_by_key(|&id| length(id)).unwrap();
    let single = ids("x")[0];
    assert_eq!(length(single), 1);
    for bytes in AROUND_THE_LIMIT {
        let answer = sized(bytes, |text| v1::DetokenizeResponse { text });
        let text = answer.text.len();
        let mut token_ids = vec![longest; text / length(longest)];
        token_ids.extend(vec![single; text % length(longest)]);
        let request = v1::DetokenizeRequest {
            token_ids,
            ..Default::default()
        };
        // The client would take more.
        let mut client = harness.client().max_decoding_message_size(64 << 20);
        let answer = soon("an answer", client.detokenize(request)).await;
        match answer {
            Ok(answer) => assert_eq!(answer.into_inner().encoded_len(), bytes),
            Err(status) => judged(&status, bytes, Code::Ok),
        }
    }
}

#[tokio::test]
async fn xfr_21_what_a_worker_cannot_be_sent_is_not_its_fault() {
    let model = TestModel::of(
        &TinyModel {
            context_length: 1 << 22,
            ..TinyModel::default()
        }
        .gguf(),
    );
    let harness = Harness::serving(&model, config(), Membership::embedded).await;
    let decode = Setup {
        pages: 1 << 20,
        context: 1 << 22,
        ..Setup::decode("decode-0", endless()).of(&model)
    };
    let _decode = harness.add(decode).await;
    // As long as a client's message may be; to a worker goes more than that.
    let length = |ids: usize| by_ids(vec![300; ids], 2).encoded_len();
    let most = (http2::MAX_MESSAGE_BYTES - length(0)) / 2;
    let most = (most - 10..=most)
        .rev()
        .find(|&ids| length(ids) <= http2::MAX_MESSAGE_BYTES);
    let status = status_of(harness.generate(by_ids(vec![300; most.unwrap()], 2)).await);
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let limit = http2::MAX_MESSAGE_BYTES.to_string();
    assert!(status.message().contains(&limit), "{status}");
    assert_eq!(harness.counter("worker_failures").await, 0);
    harness.until_idle().await;
}

/// Streams tokens again and again until `stop`; how many came, and the longest gap between them.
async fn tokens_until(
    mut client: InferenceServiceClient<tonic::transport::Channel>,
    stop: tokio::sync::oneshot::Receiver<()>,
) -> (usize, Duration) {
    let (mut tokens, mut longest) = (0, Duration::ZERO);
    let streaming = async {
        loop {
            let request = by_ids(prompt_of(5), 1500);
            let mut stream = client.generate(request).await.unwrap().into_inner();
            let mut last = Instant::now();
            while let Some(response) = stream.message().await.unwrap() {
                if let Some(v1::generate_response::Event::Token(token)) = response.event {
                    tokens += token.token_ids.len();
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
        }
    };
    tokio::select! {
        () = streaming => {}
        _ = stop => {}
    }
    (tokens, longest)
}

// The streams' reader has a thread of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn tok_10_long_runs_are_tokenized_beside_the_streams() {
    let harness = Harness::serving(&ROOMY_MODEL, config(), Membership::embedded).await;
    let decode = Setup {
        fingerprint: Fingerprint {
            metadata_digest: ROOMY_MODEL.file.metadata_digest(),
            tokenizer_digest: ROOMY_MODEL.text.digest(),
            ..fingerprint()
        },
        ..Setup::decode("decode-0", endless())
    };
    let _decode = harness.add(decode).await;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let streaming = tokio::spawn(tokens_until(harness.client(), stopped));

    // As long as a text may be, all the time beside the others.
    let limit = RouterConfig::default().max_prompt_bytes;
    let longest = "a".repeat(limit);
    let mut client = harness.client();
    let beside = tokio::spawn(async move {
        let answer = soon("tokenized", client.tokenize(tokenize(longest))).await;
        answer.unwrap().into_inner().token_ids
    });
    for text in [
        "a".repeat(100_000),
        "_".repeat(100_000),
        "日".repeat(50_000),
    ] {
        let started = Instant::now();
        let mut client = harness.client();
        let answer = soon("tokenized", client.tokenize(tokenize(text.clone()))).await;
        let token_ids = answer.unwrap().into_inner().token_ids;
        assert!(started.elapsed() < Duration::from_secs(2));
        assert!(ROOMY_MODEL.text.decode(&token_ids, false).unwrap() == text);
    }
    let token_ids = beside.await.unwrap();
    assert!(ROOMY_MODEL.text.decode(&token_ids, false).unwrap() == "a".repeat(limit));
    stop.send(()).unwrap();
    let (tokens, gap) = streaming.await.unwrap();
    assert!(
        tokens > 10 && gap < Duration::from_millis(500),
        "{tokens} tokens, a gap of {gap:?}"
    );

    let over = harness
        .client()
        .tokenize(tokenize("a".repeat(limit + 1)))
        .await;
    let status = over.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let told = format!("is {}, the limit is {limit}", limit + 1);
    assert!(status.message().contains(&told), "{status}");
}

#[tokio::test]
async fn tok_10_what_cannot_fit_the_context_is_not_tokenized() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let limit = MODEL.text.max_text_bytes();
    let mut client = harness.client();
    let longest = client.tokenize(tokenize("_".repeat(limit))).await.unwrap();
    let token_ids = longest.into_inner().token_ids;
    assert_eq!(
        MODEL.text.decode(&token_ids, false).unwrap(),
        "_".repeat(limit)
    );
    let over = "_".repeat(limit + 1);
    let refused = client.tokenize(tokenize(over.clone())).await.unwrap_err();
    let request = v1::GenerateRequest {
        input: Some(Input::Prompt(over)),
        ..by_ids(vec![], 3)
    };
    for status in [refused, status_of(harness.generate(request).await)] {
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(&limit.to_string()), "{status}");
    }
}

#[tokio::test]
async fn sec_05_one_client_cannot_take_every_place() {
    let config = RouterConfig {
        max_per_client: 2,
        ..config()
    };
    let harness = Harness::start(config).await;
    let _decode = harness.add(Setup::decode("decode-0", endless())).await;
    let mut running = Vec::new();
    for _ in 0..2 {
        // Each on a connection of its own: it is the same client all the same.
        let mut client = harness.new_client();
        let stream = client.generate(by_ids(prompt_of(5), 2000)).await.unwrap();
        running.push(stream.into_inner());
        first_token(running.last_mut().unwrap()).await;
    }
    let status = status_of(harness.generate(by_ids(vec![20], 2)).await);
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(
        status.message().contains("127.0.0.1")
            && status.message().contains("the limit for one client is 2"),
        "{status}"
    );
    assert!(retry_after(&status).is_some());
    let refused = harness.client().tokenize(tokenize("x".into())).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(harness.counter("requests_refused").await, 1);
    // Another client, and operators, are served.
    let other = http2::endpoint(&harness.address)
        .unwrap()
        .local_address(Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))))
        .connect_lazy();
    let mut other = InferenceServiceClient::new(other);
    let answer = Answer::of(&mut other, by_ids(vec![20], 2)).await;
    answer.unwrap().whole();
    // A place that is given back is the client's again.
    drop(running.pop());
    harness.until_counter("requests_cancelled", 1).await;
    harness.generate(by_ids(vec![20], 2)).await.unwrap().whole();
}
