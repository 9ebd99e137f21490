//! One request at a decode worker, from its start message to its first token there.
//!
//! It must not know how pages arrive, nor how tokens are made.

use std::sync::Arc;

use baton_proto::domain::Grant;
use baton_proto::legs::{DecodeCommand, DecodeEvent};
use baton_proto::v1;
use baton_scheduler::AfterPrompt;
use baton_telemetry::traces::{Kind, Span};
use baton_worker::{
    Admitted, Leg, LegError, OwnedSequence, Role as _, SequenceEvents, from_generated, linked_span,
    span_ref,
};
use tokio::time::Instant;
use tonic::Streaming;

use crate::granted::Granted;
use crate::tokens::TokenStream;
use crate::{DecodeWorker, commit};

/// The leg's outbound half.
pub(crate) type DecodeLeg = Leg<v1::DecodeResponse>;

/// Runs a leg to its end.
pub(crate) async fn run(
    decode: Arc<DecodeWorker>,
    mut leg: DecodeLeg,
    inbound: Streaming<v1::DecodeRequest>,
) {
    let result = serve(&decode, &mut leg, inbound).await;
    leg.close(result).await;
}

async fn serve(
    decode: &Arc<DecodeWorker>,
    leg: &mut DecodeLeg,
    mut inbound: Streaming<v1::DecodeRequest>,
) -> Result<(), LegError> {
    let worker = decode.worker();
    let first = leg.first(&mut inbound).await?;
    let DecodeCommand::Start {
        spec,
        local_prefill,
    } = DecodeCommand::from_wire(first, worker.limits())?
    else {
        return Err(LegError::Unexpected("a start message"));
    };
    let admitted = worker.admit(*spec)?;
    leg.begin(&admitted);
    let commands = Commands::new(decode.clone(), inbound, admitted.spec.params.choices);
    if local_prefill {
        prefill_here(decode, leg, commands, admitted).await
    } else {
        prefill_elsewhere(decode, leg, commands, admitted).await
    }
}

async fn prefill_here(
    decode: &Arc<DecodeWorker>,
    leg: &DecodeLeg,
    commands: Commands,
    admitted: Admitted,
) -> Result<(), LegError> {
    let steps = decode.worker().steps();
    let (sender, events) = SequenceEvents::channel(decode.worker());
    let queued_at = Instant::now();
    let submit = steps.submit(admitted.spec, AfterPrompt::Decode, None, sender);
    let id = leg.unless_over(submit).await??;
    let sequence = OwnedSequence::new(steps.clone(), id);
    TokenStream::local(leg, steps, sequence, admitted.attempt, queued_at)
        .run(events, commands)
        .await
}

async fn prefill_elsewhere(
    decode: &Arc<DecodeWorker>,
    leg: &DecodeLeg,
    mut commands: Commands,
    admitted: Admitted,
) -> Result<(), LegError> {
    let Admitted { spec, attempt } = admitted;
    let steps = decode.worker().steps();
    let (sender, mut events) = SequenceEvents::channel(decode.worker());
    let reserved = leg
        .unless_over(steps.reserve(spec.clone(), sender))
        .await??;
    let reused_tokens = reserved.reused_pages * decode.layout().page_size;
    let (granted, mut grant) = Granted::open(decode, &reserved, attempt);
    let span = receive_span(leg, &grant);
    grant.span = span_ref(&span);
    leg.send(DecodeEvent::Grant(Box::new(grant))).await?;
    let mut arrival = Arrival {
        granted,
        cancelled: Vec::new(),
        span,
    };
    let payload = arrival.wait(leg, &mut events, &mut commands).await?;
    let commit = commit::checked(
        &payload,
        &spec,
        attempt,
        decode.worker().limits().vocabulary,
    )?;
    if let Some(send) = linked_span(commit.span) {
        arrival.span.link(&send);
    }
    arrival.span = Span::default();
    let first_tokens = commit
        .first_tokens
        .iter()
        .cloned()
        .map(from_generated)
        .collect();
    let landed_at = Instant::now();
    // Order matters: while `land` is awaited the pages are still fenced by their grant.
    let id = arrival.granted.id();
    leg.unless_over(steps.land(id, first_tokens, commit.running_choices))
        .await??;
    let sequence = arrival.granted.landed();
    for choice in arrival.cancelled {
        steps.cancel_choice(id, choice);
    }
    leg.send(DecodeEvent::Landed {
        attempt,
        first_tokens: commit.first_tokens,
    })
    .await?;
    TokenStream::landed(leg, steps, sequence, attempt, landed_at, reused_tokens)
        .run(events, commands)
        .await
}

/// The span of a transfer on this side; the sender's is linked to it by the grant.
fn receive_span(leg: &DecodeLeg, grant: &Grant) -> Span {
    let mut span = leg.span().child_of_kind(Kind::Consumer, "receive", None);
    if span.is_recording() {
        span.set("baton.attempt", i64::from(grant.attempt.0));
        span.set("baton.pages", grant.slots.len() as i64);
        span.set("baton.reused_pages", i64::from(grant.reused_pages));
    }
    span
}

/// Pages on their way, and the choices that were cancelled meanwhile.
struct Arrival {
    granted: Granted,
    cancelled: Vec<u32>,
    span: Span,
}

impl Arrival {
    /// Waits for the transfer's end or the leg's.
    async fn wait(
        &mut self,
        leg: &DecodeLeg,
        events: &mut SequenceEvents,
        commands: &mut Commands,
    ) -> Result<Vec<u8>, LegError> {
        let ended = self.end(leg, events, commands).await;
        if let Err(error) = &ended {
            self.span.fail(error.reason(), || error.to_string());
        }
        ended
    }

    async fn end(
        &mut self,
        leg: &DecodeLeg,
        events: &mut SequenceEvents,
        commands: &mut Commands,
    ) -> Result<Vec<u8>, LegError> {
        loop {
            tokio::select! {
                biased;
                error = leg.over() => return Err(error),
                payload = self.granted.complete() => return payload,
                // Nothing but a failure is told before the pages have landed.
                event = events.next() => drop(event?),
                choice = commands.next_cancel() => self.cancelled.push(choice?),
            }
        }
    }
}

/// The inbound half after the start message: choices to cancel.
pub(crate) struct Commands {
    decode: Arc<DecodeWorker>,
    inbound: Streaming<v1::DecodeRequest>,
    choices: u32,
    /// Cancels so far; each choice may be cancelled once.
    cancels: u32,
    open: bool,
}

impl Commands {
    fn new(decode: Arc<DecodeWorker>, inbound: Streaming<v1::DecodeRequest>, choices: u32) -> Self {
        Self {
            decode,
            inbound,
            choices,
            cancels: 0,
            open: true,
        }
    }

    /// The next choice to cancel; pending for good once the router has said all it will say.
    pub(crate) async fn next_cancel(&mut self) -> Result<u32, LegError> {
        if !self.open {
            std::future::pending::<()>().await;
        }
        match self.inbound.message().await {
            Ok(Some(message)) => self.cancel(message),
            Ok(None) => {
                self.open = false;
                std::future::pending().await
            }
            Err(status) => Err(LegError::inbound(&status)),
        }
    }

    fn cancel(&mut self, message: v1::DecodeRequest) -> Result<u32, LegError> {
        let limits = self.decode.worker().limits();
        let DecodeCommand::CancelChoice(choice) = DecodeCommand::from_wire(message, limits)? else {
            return Err(LegError::Unexpected("one start message"));
        };
        self.cancels += 1;
        if choice >= self.choices || self.cancels > self.choices {
            return Err(LegError::Unexpected("one cancel per choice of the request"));
        }
        Ok(choice)
    }
}
