//! The leg to a decode worker.
//!
//! It must not know the prefill leg.

use std::sync::Arc;

use baton_cluster::Call;
use baton_proto::domain::Grant;
use baton_proto::ids::Attempt;
use baton_proto::legs::{DecodeCommand, DecodeEvent};
use baton_proto::v1;

use super::silence::Silence;
use super::{LegFailure, LegRequest};
use crate::workers::Slot;

/// The method.
const DECODE: &str = "/baton.v1.DecodeService/Decode";

/// An open leg. Dropping it cancels the sequence or gives the granted pages back.
#[derive(Debug)]
pub(crate) struct DecodeLeg {
    slot: Slot,
    request: Arc<LegRequest>,
    pub(crate) attempt: Attempt,
    call: Call<v1::DecodeRequest, v1::DecodeResponse>,
    silence: Silence,
}

impl DecodeLeg {
    /// Opens a leg that prefills where it decodes.
    pub(crate) async fn open_local(
        slot: Slot,
        request: &Arc<LegRequest>,
        attempt: Attempt,
    ) -> Result<Self, LegFailure> {
        Self::open(slot, request, attempt, true).await
    }

    /// Opens a leg and waits for its grant.
    pub(crate) async fn open_granted(
        slot: Slot,
        request: &Arc<LegRequest>,
        attempt: Attempt,
    ) -> Result<(Self, Grant), LegFailure> {
        let until = request.open_until();
        let mut leg = Self::open(slot, request, attempt, false).await?;
        let Ok(event) = tokio::time::timeout_at(until, leg.next()).await else {
            let reason = "it did not grant in time";
            return Err(LegFailure::silent(&mut leg.slot, request, reason));
        };
        let event = event?;
        let DecodeEvent::Grant(grant) = event else {
            return Err(leg.misbehaved("its first message is not a grant"));
        };
        let worker = leg.slot.worker();
        let fits = grant.attempt == attempt
            && grant.incarnation == worker.info.incarnation
            && grant.fingerprint == worker.info.fingerprint;
        if fits {
            Ok((leg, *grant))
        } else {
            Err(leg.misbehaved("its grant is for something else"))
        }
    }

    async fn open(
        mut slot: Slot,
        request: &Arc<LegRequest>,
        attempt: Attempt,
        local_prefill: bool,
    ) -> Result<Self, LegFailure> {
        let spec = Box::new(request.spec(slot.worker(), attempt));
        let start = DecodeCommand::Start {
            spec,
            local_prefill,
        };
        let start = start.into();
        let (call, silence) = Silence::open(&mut slot, request, DECODE, &start).await?;
        Ok(Self {
            slot,
            request: Arc::clone(request),
            attempt,
            call,
            silence,
        })
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The next event but mere signs of progress. An end of the stream before [`DecodeEvent::Done`]
    /// has been returned is a failure, whatever its status, and so is silence. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<DecodeEvent, LegFailure> {
        loop {
            match self.heard().await? {
                DecodeEvent::ChunkDone { .. } | DecodeEvent::Alive => {}
                event => {
                    self.slot.succeeded();
                    return Ok(event);
                }
            }
        }
    }

    /// An event that has arrived together with the one before, without a wait. What comes later is
    /// for [`Self::next`].
    pub(crate) fn next_buffered(&mut self) -> Option<Result<DecodeEvent, LegFailure>> {
        loop {
            let message = match self.call.buffered() {
                Ok(message) => message?,
                Err(status) => {
                    let failure = LegFailure::from_status(&mut self.slot, &status, &self.request);
                    return Some(Err(failure));
                }
            };
            match DecodeEvent::try_from(message) {
                Ok(DecodeEvent::ChunkDone { .. } | DecodeEvent::Alive) => {}
                Ok(event) => return Some(Ok(event)),
                Err(error) => return Some(Err(LegFailure::malformed(&mut self.slot, &error))),
            }
        }
    }

    async fn heard(&mut self) -> Result<DecodeEvent, LegFailure> {
        let (slot, request) = (&mut self.slot, &self.request);
        self.silence.heard(slot, request, &mut self.call).await
    }

    /// Ends one choice. Sent at most once per choice; a leg that has ended says so in its events.
    pub(crate) fn cancel_choice(&mut self, choice: u32) {
        self.call.send(&DecodeCommand::CancelChoice(choice).into());
    }

    /// The worker did something that the protocol does not allow.
    pub(crate) fn misbehaved(&mut self, reason: impl Into<String>) -> LegFailure {
        LegFailure::worker(&mut self.slot, reason)
    }
}
