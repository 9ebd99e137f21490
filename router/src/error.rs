//! Why the router cannot start, why a request ends badly, and which gRPC code says so.
//!
//! It must not know how a request got there.

use std::time::Duration;

use baton_proto::domain::WorkerRole;
use baton_proto::{ConvertError, overloaded};
use baton_text::TextError;
use tonic::{Code, Status};

/// A setting that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Outside its range.
    #[error("{field} is {value}, allowed: {allowed}")]
    OutOfRange {
        /// Name of the setting.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A list of API keys that cannot be used. It does not say hashes.
    #[error("{detail}")]
    Keys {
        /// What is wrong with it.
        detail: String,
    },
}

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The transport failed.
    #[error("serving failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// The API's description of itself is broken.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Why a request ends without a result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error(transparent)]
    Invalid(#[from] ConvertError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("{0}")]
    Unauthenticated(&'static str),
    #[error("{0}")]
    NotPermitted(&'static str),
    #[error("input is missing: one of prompt, chat and tokens")]
    NoInput,
    #[error("model {0} is not served here")]
    UnknownModel(String),
    #[error("{what} is {got}, the limit is {limit}")]
    TooLong {
        what: &'static str,
        got: usize,
        limit: usize,
    },
    #[error("token id {id} is not in the vocabulary of {vocabulary}")]
    UnknownToken { id: u32, vocabulary: u32 },
    #[error("prompt and max_tokens need {needed} pages, the largest decode pool has {largest}")]
    NeverFits { needed: u64, largest: u32 },
    /// A worker refused the request itself, not this moment.
    #[error("{0}")]
    Refused(String),
    /// The model fails at this request.
    #[error("{0}")]
    Model(String),
    #[error("{what}; try again later")]
    Overloaded { what: String, retry_after: Duration },
    #[error("no {} worker is usable{why}", role_name(*.role))]
    NoWorker {
        role: WorkerRole,
        why: String,
        retry_after: Option<Duration>,
    },
    #[error("gave up after {attempts} attempts; the last one: {last}")]
    Attempts { attempts: u32, last: String },
    #[error("{worker} was lost after {tokens} tokens: {reason}")]
    WorkerLost {
        worker: String,
        tokens: u64,
        reason: String,
    },
    #[error("the deadline has passed while {doing}")]
    Deadline { doing: &'static str },
    #[error("the client took nothing for {0:?}")]
    SlowReader(Duration),
    #[error("the client is gone")]
    ClientGone,
    #[error("the router is shutting down")]
    ShuttingDown,
    #[error("the request's task ended without a result")]
    Internal,
}

pub(crate) fn role_name(role: WorkerRole) -> &'static str {
    match role {
        WorkerRole::Prefill => "prefill",
        WorkerRole::Decode => "decode",
    }
}

impl RequestError {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Text(error) if !error.is_client_error() => Code::Internal,
            Self::Invalid(_)
            | Self::Text(_)
            | Self::NoInput
            | Self::TooLong { .. }
            | Self::UnknownToken { .. }
            | Self::NeverFits { .. }
            | Self::Refused(_) => Code::InvalidArgument,
            Self::Unauthenticated(_) => Code::Unauthenticated,
            Self::NotPermitted(_) => Code::PermissionDenied,
            Self::UnknownModel(_) => Code::NotFound,
            Self::Overloaded { .. } => Code::ResourceExhausted,
            Self::NoWorker { .. }
            | Self::Attempts { .. }
            | Self::WorkerLost { .. }
            | Self::ShuttingDown => Code::Unavailable,
            Self::Deadline { .. } => Code::DeadlineExceeded,
            Self::SlowReader(_) => Code::Aborted,
            Self::ClientGone => Code::Cancelled,
            Self::Model(_) | Self::Internal => Code::Internal,
        }
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        let hint = match &error {
            RequestError::Overloaded { retry_after, .. } => Some(*retry_after),
            RequestError::NoWorker { retry_after, .. } => *retry_after,
            _ => None,
        };
        match hint {
            Some(after) if error.code() == Code::ResourceExhausted => {
                overloaded(error.to_string(), after)
            }
            Some(after) => {
                let mut status = overloaded("", after);
                let metadata = std::mem::take(status.metadata_mut());
                Self::with_metadata(error.code(), error.to_string(), metadata)
            }
            None => Self::new(error.code(), error.to_string()),
        }
    }
}
