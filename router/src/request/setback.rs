//! What keeps a request from going on as planned.
//!
//! It must not know the plan.

use crate::error::RequestError;
use crate::legs::LegFailure;

/// The end of one way of serving a request.
#[derive(Debug)]
pub(super) enum Setback {
    /// A leg failed; another worker may do.
    Leg(LegFailure),
    /// What failed has been noted; another attempt may do.
    Again,
    /// The request ends.
    Fatal(RequestError),
}

impl From<LegFailure> for Setback {
    fn from(failure: LegFailure) -> Self {
        Self::Leg(failure)
    }
}

impl From<RequestError> for Setback {
    fn from(error: RequestError) -> Self {
        Self::Fatal(error)
    }
}
