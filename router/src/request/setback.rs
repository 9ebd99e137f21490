//! What keeps a request from going on as planned.
//!
//! It must not know the plan.

use crate::error::RequestError;
use crate::legs::LegFailure;
use crate::workers::Excluded;

/// The end of one way of serving a request.
#[derive(Debug)]
pub(super) enum Setback {
    /// A leg failed; another worker may do.
    Leg(LegFailure),
    /// What failed has been noted; another attempt may do.
    Again,
    /// No decode worker of the prefill worker's fingerprint is to be had, these were asked; one of another
    /// fingerprint may do.
    NoGrant(Box<Excluded>),
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
