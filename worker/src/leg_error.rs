//! Why a leg was refused or broke, and what gRPC says of it. The only place where either kind of
//! worker turns an error into a status.
//!
//! A status carries a stable label under [`REASON_KEY`]; the code tells the router what to do:
//! `INVALID_ARGUMENT` never here nor elsewhere, `FAILED_PRECONDITION` another worker than was asked
//! for, `RESOURCE_EXHAUSTED` not now, `UNAVAILABLE` and `ABORTED` try elsewhere, `DATA_LOSS` the model
//! itself fails at this request, here as elsewhere.

use std::time::Duration;

use baton_kv_transfer::TransferError;
use baton_proto::ids::Incarnation;
use baton_proto::{ConvertError, overloaded};
use baton_scheduler::SequenceError;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Metadata key of a status's reason label.
pub const REASON_KEY: &str = "baton-reason";

/// When a router may ask a full worker again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Why a leg was refused or ended without its last message.
#[derive(Debug, thiserror::Error)]
pub enum LegError {
    /// The model is not there yet.
    #[error("the model is still loading")]
    Loading,
    /// Nothing new is accepted.
    #[error("worker is draining")]
    Draining,
    /// The drain limit passed while this leg was running.
    #[error("worker ended before this request did")]
    DrainLimit,
    /// The step loop does not move.
    #[error("the step loop has stood still for {0:?}")]
    Stuck(Duration),
    /// Nothing came after the stream was opened.
    #[error("no start message within {0:?}")]
    NoStart(Duration),
    /// The messages of the stream are in the wrong order.
    #[error("expected {0}")]
    Unexpected(&'static str),
    /// A message that does not convert.
    #[error("{0}")]
    Malformed(#[from] ConvertError),
    /// A message that gRPC itself refuses: too long, compressed, not protobuf.
    #[error("unreadable message: {message}")]
    Unreadable {
        /// What gRPC says.
        code: Code,
        /// In its words.
        message: String,
    },
    /// Another start of this process was meant.
    #[error("incarnation {asked} was asked for, this is {here}")]
    WrongIncarnation {
        /// As the request says.
        asked: Incarnation,
        /// This process.
        here: Incarnation,
    },
    /// The router paired by another model or layout.
    #[error("the request was placed by another fingerprint than this worker's")]
    FingerprintMismatch,
    /// Without a decode leg, no choice may have more than its first token to go.
    #[error("a leg without hand-off ends with the first token, but {0} are left")]
    NoHandOff(u32),
    /// The scheduler refused or ended the sequence.
    #[error("{0}")]
    Sequence(#[from] SequenceError),
    /// The pages did not arrive.
    #[error("transfer failed: {0}")]
    Transfer(TransferError),
    /// Prefill took the transfer back.
    #[error("the transfer was revoked by the prefill worker")]
    Revoked,
    /// Pages arrived whole, but what came with them contradicts the request.
    #[error("commit does not fit the request: {0}")]
    BadCommit(String),
    /// The request's time is over.
    #[error("deadline passed")]
    DeadlineExceeded,
    /// The router has gone; nobody will read the status.
    #[error("cancelled")]
    Cancelled,
}

impl LegError {
    /// What the end of the inbound stream by an error means: the router has gone, or its message
    /// could not be read.
    pub fn inbound(status: &Status) -> Self {
        match status.code() {
            code @ (Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::InvalidArgument) => {
                let message = status.message().to_owned();
                Self::Unreadable { code, message }
            }
            _ => Self::Cancelled,
        }
    }

    /// Stable label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Draining | Self::Sequence(SequenceError::Draining) => "draining",
            Self::DrainLimit => "drain_limit",
            Self::Stuck(_) => "stuck",
            Self::NoStart(_) => "no_start",
            Self::Unexpected(_) => "unexpected_message",
            Self::Malformed(_) => "malformed",
            Self::Unreadable { .. } => "unreadable",
            Self::WrongIncarnation { .. } => "wrong_incarnation",
            Self::FingerprintMismatch => "fingerprint_mismatch",
            Self::NoHandOff(_) => "no_hand_off",
            Self::Transfer(error) => error.name(),
            Self::Revoked => "revoked",
            Self::BadCommit(_) => "bad_commit",
            Self::DeadlineExceeded | Self::Sequence(SequenceError::DeadlineExceeded) => "deadline",
            Self::Cancelled => "cancelled",
            Self::Sequence(SequenceError::NeverFits { .. }) => "never_fits",
            Self::Sequence(SequenceError::PromptTooLong { .. }) => "prompt_too_long",
            Self::Sequence(SequenceError::NoRoom { .. }) => "no_room",
            Self::Sequence(SequenceError::QueueFull { .. }) => "queue_full",
            Self::Sequence(SequenceError::SlowReader(_)) => "slow_reader",
            Self::Sequence(SequenceError::Logits(_) | SequenceError::PromptLogits { .. }) => {
                "bad_logits"
            }
            Self::Sequence(SequenceError::Internal(_)) => "internal",
            Self::Sequence(SequenceError::BadSpec(_)) => "bad_sequence",
            Self::Sequence(SequenceError::UnknownSequence) => "unknown_sequence",
            Self::Sequence(SequenceError::BadConfig(_)) => "bad_configuration",
            Self::Sequence(SequenceError::Gone) => "step_loop_ended",
        }
    }

    fn code(&self) -> Code {
        match self {
            Self::Loading | Self::Draining | Self::DrainLimit | Self::Stuck(_) => Code::Unavailable,
            Self::NoStart(_) | Self::Unexpected(_) | Self::Malformed(_) | Self::NoHandOff(_) => {
                Code::InvalidArgument
            }
            Self::WrongIncarnation { .. } | Self::FingerprintMismatch => Code::FailedPrecondition,
            Self::Transfer(_) | Self::Revoked | Self::BadCommit(_) => Code::Aborted,
            Self::Unreadable { code, .. } => *code,
            Self::DeadlineExceeded => Code::DeadlineExceeded,
            Self::Cancelled => Code::Cancelled,
            Self::Sequence(error) => match error {
                SequenceError::NeverFits { .. }
                | SequenceError::PromptTooLong { .. }
                | SequenceError::BadSpec(_) => Code::InvalidArgument,
                SequenceError::NoRoom { .. } | SequenceError::QueueFull { .. } => {
                    Code::ResourceExhausted
                }
                SequenceError::DeadlineExceeded => Code::DeadlineExceeded,
                SequenceError::SlowReader(_) | SequenceError::UnknownSequence => Code::Aborted,
                SequenceError::Logits(_) | SequenceError::PromptLogits { .. } => Code::DataLoss,
                SequenceError::Internal(_) | SequenceError::BadConfig(_) => Code::Internal,
                SequenceError::Draining | SequenceError::Gone => Code::Unavailable,
            },
        }
    }
}

impl From<LegError> for Status {
    fn from(error: LegError) -> Self {
        let mut status = match error.code() {
            Code::ResourceExhausted => overloaded(error.to_string(), RETRY_AFTER),
            code => Self::new(code, error.to_string()),
        };
        status
            .metadata_mut()
            .insert(REASON_KEY, MetadataValue::from_static(error.reason()));
        status
    }
}
