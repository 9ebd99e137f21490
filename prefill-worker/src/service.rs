//! `PrefillService`: one task per leg. It must not know what a leg does.

use baton_cluster::http2::MAX_MESSAGE_BYTES;
use baton_proto::v1;
use baton_proto::v1::prefill_service_server::{PrefillService, PrefillServiceServer};
use baton_worker::{Leg, Role as _, Slot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument as _;

use crate::{PrefillWorker, leg};

/// Serves `PrefillService` for the worker in the slot.
pub(crate) struct PrefillFront {
    slot: Slot<PrefillWorker>,
}

impl PrefillFront {
    pub(crate) fn server(slot: Slot<PrefillWorker>) -> PrefillServiceServer<Self> {
        PrefillServiceServer::new(Self { slot })
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }
}

#[tonic::async_trait]
impl PrefillService for PrefillFront {
    type PrefillStream = ReceiverStream<Result<v1::PrefillResponse, Status>>;

    async fn prefill(
        &self,
        request: Request<Streaming<v1::PrefillRequest>>,
    ) -> Result<Response<Self::PrefillStream>, Status> {
        let prefill = self.slot.get()?.clone();
        let worker = prefill.worker().clone();
        let span = worker.leg_span("prefill leg", request.metadata());
        let log_span = span.log_span();
        let (leg, reader) = Leg::new(worker.clone(), span);
        let run = leg::run(prefill, leg, request.into_inner());
        worker.spawn_leg(run.instrument(log_span));
        Ok(Response::new(ReceiverStream::new(reader)))
    }
}
