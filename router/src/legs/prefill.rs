//! The leg to a prefill worker.
//!
//! It must not know the decode leg; a grant is handed to it.

use std::sync::Arc;

use baton_cluster::Call;
use baton_proto::domain::Grant;
use baton_proto::ids::Attempt;
use baton_proto::legs::{PrefillCommand, PrefillEvent};
use baton_proto::v1;

use super::silence::Silence;
use super::{LegFailure, LegRequest};
use crate::workers::Slot;

/// The method.
const PREFILL: &str = "/baton.v1.PrefillService/Prefill";

/// An open leg. Dropping it cancels the prefill.
#[derive(Debug)]
pub(crate) struct PrefillLeg {
    slot: Slot,
    request: Arc<LegRequest>,
    call: Call<v1::PrefillRequest, v1::PrefillResponse>,
    silence: Silence,
}

impl PrefillLeg {
    pub(crate) async fn open(
        mut slot: Slot,
        request: &Arc<LegRequest>,
        attempt: Attempt,
        hand_off: bool,
    ) -> Result<Self, LegFailure> {
        let spec = Box::new(request.spec(slot.worker(), attempt));
        let start = PrefillCommand::Start { spec, hand_off }.into();
        let (call, silence) = Silence::open(&mut slot, request, PREFILL, &start).await?;
        Ok(Self {
            slot,
            request: Arc::clone(request),
            call,
            silence,
        })
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The next event but mere signs of progress. An end of the stream before [`PrefillEvent::Done`]
    /// has been returned is a failure, whatever its status, and so is silence. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<PrefillEvent, LegFailure> {
        loop {
            match self.heard().await? {
                PrefillEvent::ChunkDone { .. } | PrefillEvent::Alive => {}
                event => {
                    self.slot.succeeded();
                    return Ok(event);
                }
            }
        }
    }

    async fn heard(&mut self) -> Result<PrefillEvent, LegFailure> {
        let (slot, request) = (&mut self.slot, &self.request);
        self.silence.heard(slot, request, &mut self.call).await
    }

    /// Forwards a grant, one for each attempt. A leg that has ended says so in its events.
    pub(crate) fn grant(&mut self, grant: Grant) {
        self.call
            .send(&PrefillCommand::Grant(Box::new(grant)).into());
    }

    /// The worker did something that the protocol does not allow.
    pub(crate) fn misbehaved(&mut self, reason: impl Into<String>) -> LegFailure {
        LegFailure::worker(&mut self.slot, reason)
    }
}
