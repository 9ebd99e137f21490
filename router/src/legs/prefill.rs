//! The leg to a prefill worker.
//!
//! It must not know the decode leg; a grant is handed to it.

use std::sync::Arc;

use baton_cluster::http2::MAX_MESSAGE_BYTES;
use baton_proto::domain::Grant;
use baton_proto::ids::Attempt;
use baton_proto::legs::{PrefillCommand, PrefillEvent};
use baton_proto::v1;
use baton_proto::v1::prefill_service_client::PrefillServiceClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::silence::Silence;
use super::{LegFailure, LegRequest};
use crate::workers::Slot;

/// An open leg. Dropping it cancels the prefill.
#[derive(Debug)]
pub(crate) struct PrefillLeg {
    slot: Slot,
    request: Arc<LegRequest>,
    /// Owned beside the events, so that both directions end together.
    commands: mpsc::Sender<v1::PrefillRequest>,
    events: Streaming<v1::PrefillResponse>,
    silence: Silence,
}

impl PrefillLeg {
    pub(crate) async fn open(
        mut slot: Slot,
        request: &Arc<LegRequest>,
        attempt: Attempt,
        hand_off: bool,
    ) -> Result<Self, LegFailure> {
        let mut client = PrefillServiceClient::new(slot.worker().channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        // Room for the start and a grant per attempt that nobody has taken yet.
        let (commands, stream) = mpsc::channel(8);
        let spec = Box::new(request.spec(slot.worker(), attempt));
        // The channel is new and has room.
        let _ = commands.try_send(PrefillCommand::Start { spec, hand_off }.into());
        let opening = client.prefill(request.call(ReceiverStream::new(stream)));
        match tokio::time::timeout_at(request.open_until(), opening).await {
            Ok(Ok(response)) => Ok(Self {
                slot,
                request: Arc::clone(request),
                commands,
                events: response.into_inner(),
                silence: Silence::new(request.progress_timeout),
            }),
            Ok(Err(status)) => Err(LegFailure::from_status(&mut slot, &status, request)),
            Err(_) => Err(LegFailure::silent(
                &mut slot,
                request,
                "it did not accept the leg in time",
            )),
        }
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
        self.silence.heard(slot, request, &mut self.events).await
    }

    /// Forwards a grant. A leg that has ended says so in its events.
    pub(crate) fn grant(&mut self, grant: Grant) -> Result<(), LegFailure> {
        match self
            .commands
            .try_send(PrefillCommand::Grant(Box::new(grant)).into())
        {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(LegFailure::worker(&mut self.slot, "it takes no grants"))
            }
        }
    }

    /// The worker did something that the protocol does not allow.
    pub(crate) fn misbehaved(&mut self, reason: impl Into<String>) -> LegFailure {
        LegFailure::worker(&mut self.slot, reason)
    }
}
