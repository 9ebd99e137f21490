//! How an attempt ends at the receiver, and how the wire says so.

use crate::error::{CloseReason, TransferError};

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    Committed(Vec<u8>),
    Revoked,
    Failed(TransferError),
}

impl Ending {
    /// As the wire says it.
    pub(crate) fn reason(&self) -> CloseReason {
        match self {
            Self::Committed(_) => CloseReason::Committed,
            Self::Revoked => CloseReason::Revoked,
            Self::Failed(error) => match error {
                TransferError::Revoked => CloseReason::Dropped,
                TransferError::Expired { .. } => CloseReason::Expired,
                TransferError::Checksum { .. } | TransferError::Digest => CloseReason::Corrupt,
                TransferError::Gap { .. } => CloseReason::Gap,
                TransferError::StalePage { .. } => CloseReason::StalePage,
                TransferError::ConnectionLost { .. } => CloseReason::ConnectionLost,
                TransferError::Shutdown => CloseReason::Shutdown,
                _ => CloseReason::Violation,
            },
        }
    }
}
