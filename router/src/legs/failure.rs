//! Why a leg ended badly, and what that says about its worker.
//!
//! It must not know what is tried next.

use std::error::Error as _;
use std::time::Duration;

use baton_cluster::MemberKey;
use baton_cluster::http2::MAX_MESSAGE_BYTES;
use baton_proto::{ConvertError, code_name, retry_after};
use prost::Message;
use tonic::{Code, Status};

use super::LegRequest;
use crate::workers::Slot;

/// Quarantine of a worker that is not who the router took it for.
const FENCED: Duration = Duration::from_secs(10);

/// What a failure says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The request itself is refused: no other worker would take it.
    Request,
    /// The model fails at this request, on any worker.
    Model,
    /// Full for now; the worker is fine.
    Busy(Option<Duration>),
    /// Draining or shutting down; the worker is fine.
    Away,
    /// The request's own deadline.
    Deadline,
    /// What the two workers do together broke (a transfer, a hand-off): either may be to blame.
    HandOff,
    /// The worker, or the way to it, failed.
    Worker,
}

/// The end of a leg that has not finished.
#[derive(Debug, Clone)]
pub(crate) struct LegFailure {
    pub(crate) worker: MemberKey,
    pub(crate) kind: FailureKind,
    pub(crate) reason: String,
}

impl LegFailure {
    /// Classifies a status and tells the worker's breaker.
    pub(super) fn from_status(slot: &mut Slot, status: &Status, request: &LegRequest) -> Self {
        let from_transport = status.source().is_some();
        let kind = match status.code() {
            // Either side's clock may be the first to end a request that has little time.
            Code::DeadlineExceeded | Code::Cancelled if request.is_short() => FailureKind::Deadline,
            _ if from_transport => FailureKind::Worker,
            Code::InvalidArgument => FailureKind::Request,
            Code::ResourceExhausted => FailureKind::Busy(retry_after(status)),
            Code::Unavailable => FailureKind::Away,
            Code::DeadlineExceeded => FailureKind::Deadline,
            Code::Aborted => FailureKind::HandOff,
            Code::DataLoss => FailureKind::Model,
            // OUT_OF_RANGE is how an answer over the message limit shows: the worker's doing, since what
            // opens a leg is held to it before.
            _ => FailureKind::Worker,
        };
        let reason = if from_transport && status.code() != Code::Unavailable {
            // HTTP/2's own words say nothing to a client.
            tracing::debug!(worker = %slot.worker().key.0, error = %status, "connection lost");
            "connection lost".to_owned()
        } else {
            format!("{}: {}", code_name(status.code()), status.message())
        };
        if kind == FailureKind::Worker {
            let fenced = status.code() == Code::FailedPrecondition;
            slot.failed(if fenced { FENCED } else { Duration::ZERO }, &reason);
        }
        Self {
            worker: slot.worker().key.clone(),
            kind,
            reason,
        }
    }

    /// What opens a leg has to go into one message; with many long completions so far it may not. No worker is to
    /// blame.
    pub(super) fn unless_it_fits(start: &impl Message, slot: &Slot) -> Result<(), Self> {
        let bytes = start.encoded_len();
        if bytes <= MAX_MESSAGE_BYTES {
            return Ok(());
        }
        Err(Self {
            worker: slot.worker().key.clone(),
            kind: FailureKind::Request,
            reason: format!(
                "the prompt and its completions so far take {bytes} bytes on the way to a worker, the limit is {MAX_MESSAGE_BYTES}"
            ),
        })
    }

    /// The worker was not heard of before [`LegRequest::open_until`]: its failure only if that was
    /// not the end of the request's own time.
    pub(super) fn silent(slot: &mut Slot, request: &LegRequest, reason: &str) -> Self {
        if !request.is_over() {
            return Self::worker(slot, reason);
        }
        Self {
            worker: slot.worker().key.clone(),
            kind: FailureKind::Deadline,
            reason: "the request's deadline passed".to_owned(),
        }
    }

    /// The worker broke the protocol or kept silent.
    pub(super) fn worker(slot: &mut Slot, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        slot.failed(Duration::ZERO, &reason);
        Self {
            worker: slot.worker().key.clone(),
            kind: FailureKind::Worker,
            reason,
        }
    }

    pub(super) fn malformed(slot: &mut Slot, error: &ConvertError) -> Self {
        Self::worker(slot, format!("malformed message: {error}"))
    }
}
