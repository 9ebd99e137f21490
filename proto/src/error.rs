//! What a message can have wrong, and how that reaches a gRPC caller.
//!
//! It must not know which service the message came through.

use std::time::Duration;

use baton_sampling::ParamError;
use tonic::{Code, Status};

/// A message that is refused. Names the field, the value and what is allowed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConvertError {
    /// A field that must be set is not.
    #[error("{field} is missing")]
    Missing {
        /// Path of the field.
        field: &'static str,
    },
    /// A value outside its range or set.
    #[error("{field} is {value}, allowed: {allowed}")]
    OutOfRange {
        /// Path of the field.
        field: &'static str,
        /// The value, shortened.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// Too many bytes or entries.
    #[error("{field} has {got} {unit}, the limit is {limit}")]
    TooLong {
        /// Path of the field.
        field: &'static str,
        /// What is counted.
        unit: &'static str,
        /// How many there are.
        got: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A byte string of fixed length has another one.
    #[error("{field} has {got} bytes, it must have {expected}")]
    WrongLength {
        /// Path of the field.
        field: &'static str,
        /// Its length.
        got: usize,
        /// The length it must have.
        expected: usize,
    },
    /// A sampling parameter was refused.
    #[error(transparent)]
    Sampling(#[from] ParamError),
}

impl ConvertError {
    /// Path of the field that was refused.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Missing { field }
            | Self::OutOfRange { field, .. }
            | Self::TooLong { field, .. }
            | Self::WrongLength { field, .. }
            | Self::Sampling(ParamError::OutOfRange { field, .. }) => field,
        }
    }
}

impl From<ConvertError> for Status {
    fn from(error: ConvertError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// Metadata key of a refusal for now: after how many milliseconds to try again.
pub const RETRY_AFTER_KEY: &str = "retry-after-ms";

/// Refusal for now (full queue, full pool): `RESOURCE_EXHAUSTED` with a hint when to try again.
pub fn overloaded(message: impl Into<String>, retry_after: Duration) -> Status {
    let mut status = Status::new(Code::ResourceExhausted, message);
    let millis = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
    status.metadata_mut().insert(RETRY_AFTER_KEY, millis.into());
    status
}

/// The hint of [`overloaded`], at most an hour.
pub fn retry_after(status: &Status) -> Option<Duration> {
    let millis = status
        .metadata()
        .get(RETRY_AFTER_KEY)?
        .to_str()
        .ok()?
        .parse::<u64>()
        .ok()?;
    Some(Duration::from_millis(millis.min(3_600_000)))
}

/// gRPC's own name of a code, e.g. `RESOURCE_EXHAUSTED`.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
