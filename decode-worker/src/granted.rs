//! Pages that are reserved for a prompt to come, until it lands or nobody can write them any more.
//!
//! It must not know what the pages are for.

use std::sync::Arc;

use baton_kv_transfer::{Incoming, Outcome, Reservation};
use baton_proto::domain::{Grant, PageSlot};
use baton_proto::ids::Attempt;
use baton_scheduler::{ReservedPages, SequenceId};
use baton_worker::{LegError, OwnedSequence, Role as _};

use crate::DecodeWorker;

/// The owner of reserved pages. Dropping it puts them into quarantine; they go back to the pool once
/// the transfer is fenced, whatever has become of the leg.
pub(crate) struct Granted {
    decode: Arc<DecodeWorker>,
    id: SequenceId,
    /// `None` once the pages have landed.
    incoming: Option<Incoming>,
}

impl Granted {
    /// Opens a transfer into reserved pages; the grant goes to the router.
    pub(crate) fn open(
        decode: &Arc<DecodeWorker>,
        reserved: &ReservedPages,
        attempt: Attempt,
    ) -> (Self, Grant) {
        let slots = reserved
            .slots
            .iter()
            .map(|&(page, generation)| PageSlot {
                page: page.0,
                generation: generation.0,
            })
            .collect();
        let reservation = Reservation {
            attempt,
            slots,
            reused_pages: reserved.reused_pages,
        };
        let (grant, incoming) = decode.receiver().open(reservation);
        let decode = decode.clone();
        (
            Self {
                decode,
                id: reserved.id,
                incoming: Some(incoming),
            },
            grant,
        )
    }

    /// The sequence that will land in the pages.
    pub(crate) fn id(&self) -> SequenceId {
        self.id
    }

    /// Waits until the pages are complete; gives the payload of Commit.
    pub(crate) async fn complete(&mut self) -> Result<Vec<u8>, LegError> {
        let Some(incoming) = &mut self.incoming else {
            return Err(LegError::Unexpected("one transfer per leg"));
        };
        match incoming.outcome().await {
            Outcome::Committed { payload } => Ok(payload),
            Outcome::Revoked => Err(LegError::Revoked),
            Outcome::Failed(error) => Err(LegError::Transfer(error)),
        }
    }

    /// The pages are whole and the sequence's own from now on.
    pub(crate) fn landed(mut self) -> OwnedSequence {
        // The sender has written its last byte before Commit; nothing is left to be fenced.
        self.incoming = None;
        OwnedSequence::new(self.decode.worker().steps().clone(), self.id)
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take() else {
            return;
        };
        let worker = self.decode.worker();
        worker.steps().quarantine(self.id);
        let quarantined = OwnedSequence::new(worker.steps().clone(), self.id);
        // The pool bounds how many of these wait: each holds at least one page.
        worker.spawn(async move {
            incoming.fenced().await;
            drop(quarantined);
        });
    }
}
