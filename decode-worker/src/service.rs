//! `DecodeService`: one task per leg. It must not know what a leg does.

use baton_cluster::http2::MAX_MESSAGE_BYTES;
use baton_proto::v1;
use baton_proto::v1::decode_service_server::{DecodeService, DecodeServiceServer};
use baton_worker::{Leg, Role as _, Slot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument as _;

use crate::{DecodeWorker, leg};

/// Serves `DecodeService` for the worker in the slot.
pub(crate) struct DecodeFront {
    slot: Slot<DecodeWorker>,
}

impl DecodeFront {
    pub(crate) fn server(slot: Slot<DecodeWorker>) -> DecodeServiceServer<Self> {
        DecodeServiceServer::new(Self { slot })
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }
}

#[tonic::async_trait]
impl DecodeService for DecodeFront {
    type DecodeStream = ReceiverStream<Result<v1::DecodeResponse, Status>>;

    async fn decode(
        &self,
        request: Request<Streaming<v1::DecodeRequest>>,
    ) -> Result<Response<Self::DecodeStream>, Status> {
        let decode = self.slot.get()?.clone();
        let worker = decode.worker().clone();
        let span = worker.leg_span("decode leg", request.metadata());
        let log_span = span.log_span();
        let (leg, reader) = Leg::new(worker.clone(), span);
        let run = leg::run(decode, leg, request.into_inner());
        worker.spawn_leg(run.instrument(log_span));
        Ok(Response::new(ReceiverStream::new(reader)))
    }
}
