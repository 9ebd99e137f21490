//! The token stream of a running sequence. It must not know where its prompt was computed.

use std::time::Duration;

use baton_proto::domain::PromptLogprobs;
use baton_proto::ids::Attempt;
use baton_proto::legs::{DecodeEvent, DecodeReport, Scheduled};
use baton_scheduler::{SequenceEvent, StepHandle};
use baton_worker::{LegError, OwnedSequence, SequenceEvents, to_generated};
use tokio::time::Instant;

use crate::leg::{Commands, DecodeLeg};
use crate::spans::Phases;

/// Forwards what the step loop says of one sequence until it has ended.
pub(crate) struct TokenStream<'a> {
    leg: &'a DecodeLeg,
    steps: &'a StepHandle,
    sequence: OwnedSequence,
    attempt: Attempt,
    /// When it was queued (local) or landed.
    since: Instant,
    report: DecodeReport,
    phases: Phases<'a>,
}

impl<'a> TokenStream<'a> {
    /// Of a sequence whose prompt is computed here.
    pub(crate) fn local(
        leg: &'a DecodeLeg,
        steps: &'a StepHandle,
        sequence: OwnedSequence,
        attempt: Attempt,
        queued_at: Instant,
    ) -> Self {
        let report = DecodeReport::default();
        Self {
            leg,
            steps,
            sequence,
            attempt,
            since: queued_at,
            report,
            phases: Phases::queued(leg.span()),
        }
    }

    /// Of a sequence whose prompt has arrived.
    pub(crate) fn landed(
        leg: &'a DecodeLeg,
        steps: &'a StepHandle,
        sequence: OwnedSequence,
        attempt: Attempt,
        landed_at: Instant,
        cached_tokens: u32,
    ) -> Self {
        let report = DecodeReport {
            cached_tokens,
            ..DecodeReport::default()
        };
        Self {
            leg,
            steps,
            sequence,
            attempt,
            since: landed_at,
            report,
            phases: Phases::landing(leg.span()),
        }
    }

    /// Runs to the end of the sequence or of the leg.
    pub(crate) async fn run(
        mut self,
        mut events: SequenceEvents,
        mut commands: Commands,
    ) -> Result<(), LegError> {
        loop {
            tokio::select! {
                biased;
                error = self.leg.over() => return Err(error),
                choice = commands.next_cancel() => {
                    self.steps.cancel_choice(self.sequence.id(), choice?);
                }
                event = events.next() => match event? {
                    SequenceEvent::Done { preemptions } => {
                        self.report.preemptions = preemptions;
                        return self.end().await;
                    }
                    event => self.on_event(event).await?,
                },
            }
        }
    }

    async fn on_event(&mut self, event: SequenceEvent) -> Result<(), LegError> {
        match event {
            SequenceEvent::Scheduled { cached_tokens, .. } => {
                let now = Instant::now();
                let queue = now - std::mem::replace(&mut self.since, now);
                self.report.cached_tokens = cached_tokens;
                self.phases.scheduled(cached_tokens);
                self.leg
                    .send(DecodeEvent::Scheduled(Scheduled {
                        cached_tokens,
                        queue,
                    }))
                    .await
            }
            SequenceEvent::ChunkDone { computed_tokens } => {
                self.phases.chunk(computed_tokens);
                self.leg
                    .send(DecodeEvent::ChunkDone { computed_tokens })
                    .await
            }
            SequenceEvent::PromptLogprobs { position, entries } => {
                let some = PromptLogprobs {
                    attempt: self.attempt,
                    position,
                    entries,
                };
                self.leg.send(DecodeEvent::PromptLogprobs(some)).await
            }
            SequenceEvent::Token(token) => {
                self.phases.token();
                self.leg
                    .send(DecodeEvent::Token(to_generated(token, self.attempt)))
                    .await
            }
            SequenceEvent::PromptDone { .. } => {
                self.report.prefill = self.since.elapsed();
                self.phases.decode();
                Ok(())
            }
            SequenceEvent::FirstStep => {
                if self.report.landing == Duration::ZERO {
                    self.report.landing = self.since.elapsed();
                    self.phases.landed();
                }
                Ok(())
            }
            SequenceEvent::Done { .. } | SequenceEvent::Failed(_) => Ok(()),
        }
    }

    async fn end(self) -> Result<(), LegError> {
        drop(self.sequence);
        self.phases.done(self.report.preemptions);
        self.leg.send(DecodeEvent::Done(self.report)).await
    }
}
