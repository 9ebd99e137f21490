//! One request at a prefill worker, from its start message to its last one.
//!
//! It must not know how pages travel.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::PromptLogprobs;
use baton_proto::legs::{PrefillCommand, PrefillEvent, PrefillReport, Scheduled};
use baton_proto::v1;
use baton_scheduler::{AfterPrompt, SequenceEvent, SequenceSpec};
use baton_worker::{
    Admitted, Leg, LegError, OwnedSequence, Role as _, SequenceEvents, to_generated,
};
use tokio::time::Instant;
use tonic::Streaming;

use crate::hand_off::HandOff;
use crate::spans::Spans;
use crate::{PrefillWorker, progress};

/// The leg's outbound half.
pub(crate) type PrefillLeg = Leg<v1::PrefillResponse>;

/// Runs a leg to its end.
pub(crate) async fn run(
    prefill: Arc<PrefillWorker>,
    mut leg: PrefillLeg,
    inbound: Streaming<v1::PrefillRequest>,
) {
    let result = serve(&prefill, &mut leg, inbound).await;
    leg.close(result).await;
}

async fn serve(
    prefill: &PrefillWorker,
    leg: &mut PrefillLeg,
    mut inbound: Streaming<v1::PrefillRequest>,
) -> Result<(), LegError> {
    let worker = prefill.worker();
    let first = leg.first(&mut inbound).await?;
    let PrefillCommand::Start { spec, hand_off } =
        PrefillCommand::from_wire(first, worker.limits())?
    else {
        return Err(LegError::Unexpected("a start message"));
    };
    let admitted = worker.admit(*spec)?;
    leg.begin(&admitted);
    if hand_off {
        queue_and_hand_off(prefill, leg, inbound, admitted).await
    } else {
        first_token_only(prefill, leg, inbound, admitted).await
    }
}

async fn queue_and_hand_off(
    prefill: &PrefillWorker,
    leg: &PrefillLeg,
    inbound: Streaming<v1::PrefillRequest>,
    admitted: Admitted,
) -> Result<(), LegError> {
    let steps = prefill.worker().steps();
    let (sender, events) = SequenceEvents::channel(prefill.worker());
    let (factory, shared) = progress::factory(prefill.layout(), tokens_to_compute(&admitted.spec));
    let queued_at = Instant::now();
    let submit = steps.submit(admitted.spec, AfterPrompt::HandOff, Some(factory), sender);
    let id = leg.unless_over(submit).await??;
    let sequence = OwnedSequence::new(steps.clone(), id);
    HandOff::new(prefill, leg, sequence, shared, admitted.attempt, queued_at)
        .run(events, inbound)
        .await
}

/// No decode leg will follow: the sequence ends with its first tokens.
async fn first_token_only(
    prefill: &PrefillWorker,
    leg: &PrefillLeg,
    mut inbound: Streaming<v1::PrefillRequest>,
    admitted: Admitted,
) -> Result<(), LegError> {
    let left = tokens_left(&admitted.spec);
    if left > 1 {
        return Err(LegError::NoHandOff(left));
    }
    let steps = prefill.worker().steps();
    let (sender, mut events) = SequenceEvents::channel(prefill.worker());
    let queued_at = Instant::now();
    let submit = steps.submit(admitted.spec, AfterPrompt::Decode, None, sender);
    let id = leg.unless_over(submit).await??;
    let sequence = OwnedSequence::new(steps.clone(), id);
    let mut spans = Spans::queued(leg.span());
    let mut started = queued_at;
    let mut computed = Duration::ZERO;
    let mut reading = true;
    loop {
        let event = tokio::select! {
            biased;
            error = leg.over() => return Err(error),
            event = events.next() => event?,
            message = inbound.message(), if reading => match message {
                Ok(None) => {
                    reading = false;
                    continue;
                }
                Ok(Some(_)) => return Err(LegError::Unexpected("no message after start")),
                Err(status) => return Err(LegError::inbound(&status)),
            },
        };
        match event {
            SequenceEvent::Scheduled { cached_tokens, .. } => {
                started = Instant::now();
                spans.scheduled(cached_tokens);
                let queue = started - queued_at;
                leg.send(PrefillEvent::Scheduled(Scheduled {
                    cached_tokens,
                    queue,
                }))
                .await?;
            }
            SequenceEvent::ChunkDone { computed_tokens } => {
                spans.chunk(computed_tokens);
                leg.send(PrefillEvent::ChunkDone { computed_tokens })
                    .await?;
            }
            SequenceEvent::PromptLogprobs { position, entries } => {
                let some = PromptLogprobs {
                    attempt: admitted.attempt,
                    position,
                    entries,
                };
                leg.send(PrefillEvent::PromptLogprobs(some)).await?;
            }
            SequenceEvent::Token(token) => {
                computed = started.elapsed();
                let token = to_generated(token, admitted.attempt);
                leg.send(PrefillEvent::FirstToken(token)).await?;
            }
            SequenceEvent::Done { .. } => break,
            SequenceEvent::PromptDone { .. }
            | SequenceEvent::FirstStep
            | SequenceEvent::Failed(_) => {}
        }
    }
    spans.computed();
    drop(sequence);
    let report = PrefillReport {
        prefill: computed,
        ..PrefillReport::default()
    };
    leg.send(PrefillEvent::Done(report)).await
}

/// Tokens whose K and V travel: the prompt and, of a choice that runs alone, its completion so far.
fn tokens_to_compute(spec: &SequenceSpec) -> u32 {
    let mut running = spec.completions.iter().filter(|choice| !choice.ended);
    let so_far = match (running.next(), running.next()) {
        (Some(alone), None) => alone.token_ids.len(),
        _ => 0,
    };
    (spec.prompt.len() + so_far) as u32
}

/// Most tokens that any choice may still get.
fn tokens_left(spec: &SequenceSpec) -> u32 {
    let most = spec.params.max_tokens;
    let running = spec.completions.iter().filter(|choice| !choice.ended);
    running
        .map(|choice| most.saturating_sub(choice.token_ids.len() as u32))
        .max()
        .unwrap_or(if spec.completions.is_empty() { most } else { 0 })
}
