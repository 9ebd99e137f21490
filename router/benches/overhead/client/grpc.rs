//! Calls over gRPC, to a router or to a decode worker that prefills by itself. It must not know what answers.

use std::io;
use std::time::Instant;

use baton_cluster::{Dialer, http2};
use baton_proto::v1;
use baton_proto::v1::decode_service_client::DecodeServiceClient;
use baton_proto::v1::generate_response::Event;
use baton_proto::v1::inference_service_client::InferenceServiceClient;
use futures::stream;
use tonic::Status;
use tonic::transport::Channel;

use super::{TOKENS, Times};
use crate::Failure;
use crate::arguments::Call;

/// One channel, shared by all callers.
#[derive(Clone)]
pub(super) enum Grpc {
    Router(InferenceServiceClient<Channel>),
    Worker(DecodeServiceClient<Channel>),
}

impl Grpc {
    pub(super) async fn new(call: Call, address: &str) -> Result<Self, Failure> {
        let channel = Dialer::plain().connect(&http2::endpoint(address)?).await?;
        Ok(match call {
            Call::Decode => Self::Worker(DecodeServiceClient::new(channel)),
            _ => Self::Router(InferenceServiceClient::new(channel)),
        })
    }

    pub(super) async fn ask(&mut self, prompt: &str) -> io::Result<Times> {
        let asked = match self {
            Self::Router(client) => generate(client, prompt).await,
            Self::Worker(client) => decode(client).await,
        };
        asked.map_err(|status| io::Error::other(status.to_string()))
    }
}

fn sampling() -> v1::SamplingOptions {
    v1::SamplingOptions {
        temperature: Some(0.0),
        max_tokens: Some(TOKENS),
        ignore_eos: true,
        ..v1::SamplingOptions::default()
    }
}

async fn generate(
    client: &mut InferenceServiceClient<Channel>,
    prompt: &str,
) -> Result<Times, Status> {
    let request = v1::GenerateRequest {
        input: Some(v1::generate_request::Input::Prompt(prompt.to_owned())),
        sampling: Some(sampling()),
        ..v1::GenerateRequest::default()
    };
    let (asked, mut times, mut tokens) = (Instant::now(), Times::default(), 0);
    let mut answer = client.generate(request).await?.into_inner();
    while let Some(event) = answer.message().await? {
        if let Some(Event::Token(token)) = event.event {
            note(&mut times, &mut tokens, token.token_ids.len(), asked);
        }
    }
    times.end = asked.elapsed();
    complete(tokens, times)
}

async fn decode(client: &mut DecodeServiceClient<Channel>) -> Result<Times, Status> {
    let start = v1::DecodeStart {
        spec: Some(v1::SequenceSpec {
            request_id: "0123456789abcdef0123456789abcdef".to_owned(),
            fingerprint_digest: vec![1; 32],
            prompt_ids: (100..116).collect(),
            sampling: Some(sampling()),
            deadline_ms: 60_000,
            attempt: 1,
            ..v1::SequenceSpec::default()
        }),
        local_prefill: true,
    };
    let start = v1::DecodeRequest {
        message: Some(v1::decode_request::Message::Start(start)),
    };
    let (asked, mut times, mut tokens) = (Instant::now(), Times::default(), 0);
    let mut answer = client.decode(stream::iter([start])).await?.into_inner();
    while let Some(event) = answer.message().await? {
        if let Some(v1::decode_response::Event::Token(_)) = event.event {
            note(&mut times, &mut tokens, 1, asked);
        }
    }
    times.end = asked.elapsed();
    complete(tokens, times)
}

fn note(times: &mut Times, tokens: &mut usize, more: usize, asked: Instant) {
    if *tokens == 0 {
        times.first = asked.elapsed();
    }
    *tokens += more;
    if *tokens == TOKENS as usize {
        times.last = asked.elapsed();
    }
}

fn complete(tokens: usize, times: Times) -> Result<Times, Status> {
    if tokens == TOKENS as usize {
        return Ok(times);
    }
    Err(Status::data_loss(format!("{tokens} tokens of {TOKENS}")))
}
