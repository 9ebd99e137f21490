//! Messages of the two legs.
//!
//! It must not know in which order they are allowed.

use std::time::Duration;

use baton_sampling::MAX_CHOICES;

use super::check::{entries, present, shortened};
use super::sequence::{SequenceLimits, attempt, choice};
use crate::domain::{GeneratedToken, SequenceSpec, Transport};
use crate::error::ConvertError;
use crate::ids::Attempt;
use crate::legs::{
    Alive, DecodeCommand, DecodeEvent, DecodeReport, PrefillCommand, PrefillEvent, PrefillReport,
    Scheduled,
};
use crate::limits::MAX_REASON_BYTES;
use crate::v1;
use crate::v1::{decode_request, decode_response, prefill_request, prefill_response};

impl PrefillCommand {
    /// Checks and converts a message of the router.
    ///
    /// # Errors
    /// The first field that is missing or out of range.
    pub fn from_wire(
        request: v1::PrefillRequest,
        limits: &SequenceLimits,
    ) -> Result<Self, ConvertError> {
        match present("message", request.message)? {
            prefill_request::Message::Start(start) => Ok(Self::Start {
                spec: Box::new(SequenceSpec::from_wire(
                    present("spec", start.spec)?,
                    limits,
                )?),
                hand_off: start.hand_off,
            }),
            prefill_request::Message::Grant(grant) => Ok(Self::Grant(Box::new(grant.try_into()?))),
        }
    }
}

impl From<PrefillCommand> for v1::PrefillRequest {
    fn from(command: PrefillCommand) -> Self {
        let message = match command {
            PrefillCommand::Start { spec, hand_off } => {
                prefill_request::Message::Start(v1::PrefillStart {
                    spec: Some((*spec).into()),
                    hand_off,
                })
            }
            PrefillCommand::Grant(grant) => prefill_request::Message::Grant((*grant).into()),
        };
        Self {
            message: Some(message),
        }
    }
}

impl TryFrom<v1::PrefillResponse> for PrefillEvent {
    type Error = ConvertError;

    fn try_from(response: v1::PrefillResponse) -> Result<Self, ConvertError> {
        Ok(match present("event", response.event)? {
            prefill_response::Event::Scheduled(scheduled) => Self::Scheduled(scheduled.into()),
            prefill_response::Event::FirstToken(token) => Self::FirstToken(token.try_into()?),
            prefill_response::Event::PromptLogprobs(some) => Self::PromptLogprobs(some.try_into()?),
            prefill_response::Event::Done(done) => Self::Done(done.try_into()?),
            prefill_response::Event::TransferFailed(failed) => Self::TransferFailed {
                attempt: attempt("attempt", failed.attempt)?,
                reason: shortened(failed.reason, MAX_REASON_BYTES),
            },
            prefill_response::Event::ChunkDone(chunk) => Self::ChunkDone {
                computed_tokens: chunk.computed_tokens,
            },
            prefill_response::Event::Alive(v1::LegAlive {}) => Self::Alive,
        })
    }
}

impl From<PrefillEvent> for v1::PrefillResponse {
    fn from(event: PrefillEvent) -> Self {
        let event = match event {
            PrefillEvent::Scheduled(scheduled) => {
                prefill_response::Event::Scheduled(scheduled.into())
            }
            PrefillEvent::FirstToken(token) => prefill_response::Event::FirstToken(token.into()),
            PrefillEvent::PromptLogprobs(some) => {
                prefill_response::Event::PromptLogprobs(some.into())
            }
            PrefillEvent::Done(report) => prefill_response::Event::Done(report.into()),
            PrefillEvent::TransferFailed { attempt, reason } => {
                let reason = shortened(reason, MAX_REASON_BYTES);
                let failed = v1::TransferFailed {
                    attempt: attempt.0,
                    reason,
                };
                prefill_response::Event::TransferFailed(failed)
            }
            PrefillEvent::ChunkDone { computed_tokens } => {
                prefill_response::Event::ChunkDone(v1::ChunkDone { computed_tokens })
            }
            PrefillEvent::Alive => prefill_response::Event::Alive(v1::LegAlive {}),
        };
        Self { event: Some(event) }
    }
}

impl From<Alive> for v1::PrefillResponse {
    fn from(_: Alive) -> Self {
        PrefillEvent::Alive.into()
    }
}

impl From<Alive> for v1::DecodeResponse {
    fn from(_: Alive) -> Self {
        DecodeEvent::Alive.into()
    }
}

impl DecodeCommand {
    /// Checks and converts a message of the router.
    ///
    /// # Errors
    /// The first field that is missing or out of range.
    pub fn from_wire(
        request: v1::DecodeRequest,
        limits: &SequenceLimits,
    ) -> Result<Self, ConvertError> {
        match present("message", request.message)? {
            decode_request::Message::Start(start) => Ok(Self::Start {
                spec: Box::new(SequenceSpec::from_wire(
                    present("spec", start.spec)?,
                    limits,
                )?),
                local_prefill: start.local_prefill,
            }),
            decode_request::Message::CancelChoice(cancel) => {
                Ok(Self::CancelChoice(choice(cancel.choice)?))
            }
        }
    }
}

impl From<DecodeCommand> for v1::DecodeRequest {
    fn from(command: DecodeCommand) -> Self {
        let message = match command {
            DecodeCommand::Start {
                spec,
                local_prefill,
            } => decode_request::Message::Start(v1::DecodeStart {
                spec: Some((*spec).into()),
                local_prefill,
            }),
            DecodeCommand::CancelChoice(choice) => {
                decode_request::Message::CancelChoice(v1::CancelChoice { choice })
            }
        };
        Self {
            message: Some(message),
        }
    }
}

impl TryFrom<v1::DecodeResponse> for DecodeEvent {
    type Error = ConvertError;

    fn try_from(response: v1::DecodeResponse) -> Result<Self, ConvertError> {
        Ok(match present("event", response.event)? {
            decode_response::Event::Grant(grant) => Self::Grant(Box::new(grant.try_into()?)),
            decode_response::Event::Landed(landed) => {
                entries(
                    "first_tokens",
                    landed.first_tokens.len(),
                    MAX_CHOICES as usize,
                )?;
                let tokens = landed
                    .first_tokens
                    .into_iter()
                    .map(GeneratedToken::try_from);
                Self::Landed {
                    attempt: attempt("attempt", landed.attempt)?,
                    first_tokens: tokens.collect::<Result<_, _>>()?,
                }
            }
            decode_response::Event::Token(token) => Self::Token(token.try_into()?),
            decode_response::Event::PromptLogprobs(some) => Self::PromptLogprobs(some.try_into()?),
            decode_response::Event::Done(done) => Self::Done(done.into()),
            decode_response::Event::Scheduled(scheduled) => Self::Scheduled(scheduled.into()),
            decode_response::Event::ChunkDone(chunk) => Self::ChunkDone {
                computed_tokens: chunk.computed_tokens,
            },
            decode_response::Event::Alive(v1::LegAlive {}) => Self::Alive,
        })
    }
}

impl From<DecodeEvent> for v1::DecodeResponse {
    fn from(event: DecodeEvent) -> Self {
        let event = match event {
            DecodeEvent::Grant(grant) => decode_response::Event::Grant((*grant).into()),
            DecodeEvent::Landed {
                attempt,
                first_tokens,
            } => {
                let tokens = first_tokens.into_iter().map(v1::GeneratedToken::from);
                let landed = v1::Landed {
                    attempt: attempt.0,
                    first_tokens: tokens.collect(),
                };
                decode_response::Event::Landed(landed)
            }
            DecodeEvent::Token(token) => decode_response::Event::Token(token.into()),
            DecodeEvent::PromptLogprobs(some) => {
                decode_response::Event::PromptLogprobs(some.into())
            }
            DecodeEvent::Done(report) => decode_response::Event::Done(report.into()),
            DecodeEvent::Scheduled(scheduled) => {
                decode_response::Event::Scheduled(scheduled.into())
            }
            DecodeEvent::ChunkDone { computed_tokens } => {
                decode_response::Event::ChunkDone(v1::ChunkDone { computed_tokens })
            }
            DecodeEvent::Alive => decode_response::Event::Alive(v1::LegAlive {}),
        };
        Self { event: Some(event) }
    }
}

impl From<v1::PrefillScheduled> for Scheduled {
    fn from(scheduled: v1::PrefillScheduled) -> Self {
        Self {
            cached_tokens: scheduled.cached_tokens,
            queue: Duration::from_micros(scheduled.queue_us),
        }
    }
}

impl From<Scheduled> for v1::PrefillScheduled {
    fn from(scheduled: Scheduled) -> Self {
        Self {
            cached_tokens: scheduled.cached_tokens,
            queue_us: micros(scheduled.queue),
        }
    }
}

impl TryFrom<v1::PrefillDone> for PrefillReport {
    type Error = ConvertError;

    fn try_from(done: v1::PrefillDone) -> Result<Self, ConvertError> {
        let transport = match done.transport.as_str() {
            "" => None,
            name => Some(Transport::try_from(name)?),
        };
        Ok(Self {
            prefill: Duration::from_micros(done.prefill_us),
            grant_wait: Duration::from_micros(done.grant_wait_us),
            transfer: Duration::from_micros(done.transfer_us),
            transfer_bytes: done.transfer_bytes,
            bytes_before_last_step: done.bytes_before_last_step.min(done.transfer_bytes),
            transport,
            committed: done.committed,
            attempt: (done.committed && done.attempt > 0).then_some(Attempt(done.attempt)),
        })
    }
}

impl From<PrefillReport> for v1::PrefillDone {
    fn from(report: PrefillReport) -> Self {
        Self {
            prefill_us: micros(report.prefill),
            grant_wait_us: micros(report.grant_wait),
            transfer_us: micros(report.transfer),
            transfer_bytes: report.transfer_bytes,
            bytes_before_last_step: report.bytes_before_last_step,
            transport: report
                .transport
                .map_or_else(String::new, |t| t.as_str().to_owned()),
            committed: report.committed,
            attempt: report.attempt.map_or(0, |attempt| attempt.0),
        }
    }
}

impl From<v1::DecodeDone> for DecodeReport {
    fn from(done: v1::DecodeDone) -> Self {
        Self {
            landing: Duration::from_micros(done.landing_us),
            preemptions: done.preemptions,
            prefill: Duration::from_micros(done.prefill_us),
            cached_tokens: done.cached_tokens,
        }
    }
}

impl From<DecodeReport> for v1::DecodeDone {
    fn from(report: DecodeReport) -> Self {
        Self {
            landing_us: micros(report.landing),
            preemptions: report.preemptions,
            prefill_us: micros(report.prefill),
            cached_tokens: report.cached_tokens,
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
