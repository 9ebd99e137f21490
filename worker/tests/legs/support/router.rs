//! The router's part of a request, reduced to what the workers see of it.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_proto::domain::{
    Completion, FinishReason, GeneratedToken, Grant, PromptLogprobs, SequenceSpec,
};
use baton_proto::ids::{Attempt, RequestId};
use baton_proto::legs::{
    DecodeCommand, DecodeEvent, DecodeReport, PrefillCommand, PrefillEvent, PrefillReport,
    Scheduled,
};
use baton_proto::v1;
use baton_proto::v1::decode_service_client::DecodeServiceClient;
use baton_proto::v1::prefill_service_client::PrefillServiceClient;
use baton_sampling::{SamplingParams, TokenLogprobs};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::node::Node;
use super::soon;

/// A request as a router would have admitted it.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) id: String,
    pub(crate) prompt: Vec<u32>,
    pub(crate) params: SamplingParams,
    pub(crate) salt: Vec<u8>,
    pub(crate) time: Duration,
    pub(crate) attempt: u32,
    pub(crate) completions: Vec<Completion>,
}

impl Ask {
    /// Greedy, `max_tokens` tokens, whatever they are.
    pub(crate) fn greedy(prompt: Vec<u32>, max_tokens: u32) -> Self {
        let params = SamplingParams {
            max_tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        Self {
            id: "request".into(),
            prompt,
            params,
            salt: Vec::new(),
            time: Duration::from_secs(25),
            attempt: 1,
            completions: Vec::new(),
        }
    }

    /// The first message of a prefill leg.
    pub(crate) fn prefill_start(&self, node: &Node, hand_off: bool) -> v1::PrefillRequest {
        let spec = Box::new(self.spec(node));
        PrefillCommand::Start { spec, hand_off }.into()
    }

    /// The first message of a decode leg.
    pub(crate) fn decode_start(&self, node: &Node, local_prefill: bool) -> v1::DecodeRequest {
        let spec = Box::new(self.spec(node));
        DecodeCommand::Start {
            spec,
            local_prefill,
        }
        .into()
    }

    pub(crate) fn spec(&self, node: &Node) -> SequenceSpec {
        SequenceSpec {
            request_id: RequestId(self.id.clone()),
            incarnation: node.info().incarnation,
            fingerprint_digest: node.info().fingerprint.digest(),
            prompt_ids: self.prompt.clone(),
            completions: self.completions.clone(),
            params: self.params.clone(),
            cache_salt: self.salt.clone(),
            time_left: self.time,
            attempt: Attempt(self.attempt),
        }
    }
}

/// A token as a client would see it: id, log-probabilities, end.
pub(crate) type Seen = (u32, Option<TokenLogprobs>, Option<FinishReason>);

/// What came of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Got {
    /// Of the prompt's tokens from the second on.
    pub(crate) prompt: Vec<TokenLogprobs>,
    pub(crate) choices: BTreeMap<u32, Vec<Seen>>,
    pub(crate) scheduled: Option<Scheduled>,
    pub(crate) prefill: Option<PrefillReport>,
    pub(crate) decode: Option<DecodeReport>,
}

impl Got {
    /// Token ids by choice.
    pub(crate) fn ids(&self) -> Vec<Vec<u32>> {
        let ids = |tokens: &Vec<Seen>| tokens.iter().map(|seen| seen.0).collect();
        self.choices.values().map(ids).collect()
    }

    /// Takes what comes next of the prompt.
    pub(crate) fn take_prompt(&mut self, told: PromptLogprobs) {
        assert!(self.choices.is_empty(), "before any token");
        assert_eq!(told.position as usize, self.prompt.len() + 1, "in order");
        self.prompt.extend(told.entries);
    }

    /// Takes a token at its position; one that was there already must be the same.
    pub(crate) fn take(&mut self, token: GeneratedToken) {
        let tokens = self.choices.entry(token.choice).or_default();
        let seen = (token.token_id, token.logprobs, token.finish);
        if let Some(before) = tokens.get(token.position as usize) {
            assert_eq!(*before, seen, "a repeated token differs");
        } else {
            assert_eq!(token.position as usize, tokens.len(), "a token is missing");
            tokens.push(seen);
        }
    }
}

/// A leg at a prefill worker.
pub(crate) struct PrefillLeg {
    sender: mpsc::Sender<v1::PrefillRequest>,
    events: Streaming<v1::PrefillResponse>,
}

impl PrefillLeg {
    pub(crate) async fn open(node: &Node, ask: &Ask, hand_off: bool) -> Result<Self, Status> {
        Self::open_raw(node, ask.prefill_start(node, hand_off)).await
    }

    pub(crate) async fn open_raw(node: &Node, first: v1::PrefillRequest) -> Result<Self, Status> {
        Self::open_over(node.channel.clone(), first).await
    }

    /// Over a connection of the caller's.
    pub(crate) async fn open_over(
        channel: Channel,
        first: v1::PrefillRequest,
    ) -> Result<Self, Status> {
        let (sender, receiver) = mpsc::channel(8);
        sender.try_send(first).expect("room for the first message");
        let mut client = PrefillServiceClient::new(channel);
        let opened = client.prefill(ReceiverStream::new(receiver));
        let events = soon("an open prefill leg", opened).await?.into_inner();
        Ok(Self { sender, events })
    }

    /// The next event but signs of progress; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<PrefillEvent>, Status> {
        loop {
            match self.next_sign().await? {
                Some(PrefillEvent::ChunkDone { .. } | PrefillEvent::Alive) => {}
                event => return Ok(event),
            }
        }
    }

    /// The next event, whatever it is; `None` at the end.
    pub(crate) async fn next_sign(&mut self) -> Result<Option<PrefillEvent>, Status> {
        let message = soon("a prefill event", self.events.message()).await?;
        Ok(message.map(|message| message.try_into().expect("a valid event")))
    }

    pub(crate) async fn scheduled(&mut self) -> Result<Scheduled, Status> {
        match self.next().await? {
            Some(PrefillEvent::Scheduled(scheduled)) => Ok(scheduled),
            other => panic!("expected Scheduled, got {other:?}"),
        }
    }

    pub(crate) fn grant(&self, grant: Grant) {
        let message = PrefillCommand::Grant(Box::new(grant)).into();
        // A leg that has ended says why to whoever reads its events.
        let _ = self.sender.try_send(message);
    }

    /// Sends a message that no domain type can hold.
    pub(crate) fn raw(&self, message: v1::PrefillRequest) {
        self.sender.try_send(message).expect("room for a message");
    }

    /// Reads on until a transfer fails; gives its attempt and reason.
    pub(crate) async fn transfer_failed(&mut self) -> (Attempt, String) {
        loop {
            match self.next().await.expect("the leg goes on") {
                Some(PrefillEvent::TransferFailed { attempt, reason }) => {
                    return (attempt, reason);
                }
                Some(PrefillEvent::FirstToken(_)) => {}
                other => panic!("expected TransferFailed, got {other:?}"),
            }
        }
    }

    /// Reads on to the last message.
    pub(crate) async fn finish(&mut self, got: &mut Got) -> Result<(), Status> {
        while got.prefill.is_none() {
            match self.next().await? {
                Some(PrefillEvent::Scheduled(scheduled)) => got.scheduled = Some(scheduled),
                Some(PrefillEvent::PromptLogprobs(told)) => got.take_prompt(told),
                Some(PrefillEvent::FirstToken(token)) => got.take(token),
                Some(PrefillEvent::Done(report)) => got.prefill = Some(report),
                Some(PrefillEvent::ChunkDone { .. } | PrefillEvent::Alive) => {}
                Some(PrefillEvent::TransferFailed { attempt, reason }) => {
                    return Err(Status::aborted(format!("attempt {}: {reason}", attempt.0)));
                }
                None => return Err(Status::unknown("prefill ended without its last message")),
            }
        }
        Ok(())
    }
}

/// A leg at a decode worker.
pub(crate) struct DecodeLeg {
    sender: mpsc::Sender<v1::DecodeRequest>,
    events: Streaming<v1::DecodeResponse>,
}

impl DecodeLeg {
    pub(crate) async fn open(node: &Node, ask: &Ask, local_prefill: bool) -> Result<Self, Status> {
        Self::open_raw(node, ask.decode_start(node, local_prefill)).await
    }

    pub(crate) async fn open_raw(node: &Node, first: v1::DecodeRequest) -> Result<Self, Status> {
        Self::open_over(node.channel.clone(), first).await
    }

    /// Over a connection of the caller's.
    pub(crate) async fn open_over(
        channel: Channel,
        first: v1::DecodeRequest,
    ) -> Result<Self, Status> {
        let (sender, receiver) = mpsc::channel(32);
        sender.try_send(first).expect("room for the first message");
        let mut client = DecodeServiceClient::new(channel);
        let opened = client.decode(ReceiverStream::new(receiver));
        let events = soon("an open decode leg", opened).await?.into_inner();
        Ok(Self { sender, events })
    }

    /// The next event but signs of progress; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<DecodeEvent>, Status> {
        loop {
            match self.next_sign().await? {
                Some(DecodeEvent::ChunkDone { .. } | DecodeEvent::Alive) => {}
                event => return Ok(event),
            }
        }
    }

    /// The next event, whatever it is; `None` at the end.
    pub(crate) async fn next_sign(&mut self) -> Result<Option<DecodeEvent>, Status> {
        let message = soon("a decode event", self.events.message()).await?;
        Ok(message.map(|message| message.try_into().expect("a valid event")))
    }

    pub(crate) async fn granted(&mut self) -> Result<Grant, Status> {
        match self.next().await? {
            Some(DecodeEvent::Grant(grant)) => Ok(*grant),
            other => panic!("expected Grant, got {other:?}"),
        }
    }

    pub(crate) fn cancel(&self, choice: u32) {
        let message = DecodeCommand::CancelChoice(choice).into();
        self.sender.try_send(message).expect("room for a cancel");
    }

    /// Reads one event into `got`; whether it was the last.
    pub(crate) async fn step(&mut self, got: &mut Got) -> Result<bool, Status> {
        match self.next().await? {
            Some(DecodeEvent::Scheduled(scheduled)) => got.scheduled = Some(scheduled),
            Some(DecodeEvent::Landed { first_tokens, .. }) => {
                for token in first_tokens {
                    got.take(token);
                }
            }
            Some(DecodeEvent::PromptLogprobs(told)) => got.take_prompt(told),
            Some(DecodeEvent::Token(token)) => got.take(token),
            Some(DecodeEvent::Done(report)) => {
                got.decode = Some(report);
                return Ok(true);
            }
            Some(DecodeEvent::ChunkDone { .. } | DecodeEvent::Alive) => {}
            Some(DecodeEvent::Grant(grant)) => panic!("a second grant: {grant:?}"),
            None => return Err(Status::unknown("decode ended without its last message")),
        }
        Ok(false)
    }

    /// Reads on to the last message.
    pub(crate) async fn finish(&mut self, got: &mut Got) -> Result<(), Status> {
        while !self.step(got).await? {}
        Ok(())
    }
}

/// A request on two workers.
pub(crate) async fn split(prefill: &Node, decode: &Node, ask: &Ask) -> Result<Got, Status> {
    let hand_off = ask.params.max_tokens > 1;
    let mut got = Got::default();
    let mut first = PrefillLeg::open(prefill, ask, hand_off).await?;
    got.scheduled = Some(first.scheduled().await?);
    if !hand_off {
        first.finish(&mut got).await?;
        return Ok(got);
    }
    let mut second = DecodeLeg::open(decode, ask, false).await?;
    first.grant(second.granted().await?);
    first.finish(&mut got).await?;
    if got.prefill.as_ref().is_some_and(|report| report.committed) {
        second.finish(&mut got).await?;
    }
    Ok(got)
}

/// A request on the decode worker alone.
pub(crate) async fn local(decode: &Node, ask: &Ask) -> Result<Got, Status> {
    let mut got = Got::default();
    DecodeLeg::open(decode, ask, true)
        .await?
        .finish(&mut got)
        .await?;
    Ok(got)
}

/// Label that a worker gave as the reason of a status.
pub(crate) fn reason(status: &Status) -> String {
    let reason = status.metadata().get(baton_worker::REASON_KEY);
    reason
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned()
}
