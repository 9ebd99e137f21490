//! Embedded membership, the router's side: a worker's registration is a stream, and the stream's end
//! is the worker's.
//!
//! It must not know what makes a worker fit; that is asked of [`CheckWorker`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_proto::domain::{WorkerInfo, WorkerLoad};
use baton_proto::limits::MAX_DIFFERING_FIELDS;
use baton_proto::v1;
use baton_proto::v1::register_request::Message;
use baton_proto::v1::registry_service_server::{RegistryService, RegistryServiceServer};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::http2::MAX_MESSAGE_BYTES;
use crate::membership::CheckWorker;
use crate::table::{Entry, MemberKey, TableWriter};

/// Time for a new registration to say who it is.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);

type Replies = mpsc::Sender<Result<v1::RegisterResponse, Status>>;

/// Registrations that are open now.
#[derive(Debug, Clone)]
pub struct Registry {
    writer: Arc<TableWriter>,
    open: Arc<Mutex<HashMap<MemberKey, Replies>>>,
}

impl Registry {
    pub(crate) fn new(writer: Arc<TableWriter>) -> Self {
        Self {
            writer,
            open: Arc::default(),
        }
    }

    /// The gRPC service. Workers that do not fit stay in the table, told which fields differ.
    pub fn service(&self, check: CheckWorker) -> RegistryServiceServer<impl RegistryService> {
        RegistryServiceServer::new(Service {
            registry: self.clone(),
            check,
        })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    pub(crate) fn request_drain(&self, key: &MemberKey) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let message = v1::RegisterResponse {
            accepted: true,
            drain: true,
            ..Default::default()
        };
        open.get(key)
            .is_some_and(|replies| replies.try_send(Ok(message)).is_ok())
    }
}

struct Service {
    registry: Registry,
    check: CheckWorker,
}

#[tonic::async_trait]
impl RegistryService for Service {
    type RegisterStream = ReceiverStream<Result<v1::RegisterResponse, Status>>;

    async fn register(
        &self,
        request: Request<Streaming<v1::RegisterRequest>>,
    ) -> Result<Response<Self::RegisterStream>, Status> {
        let mut requests = request.into_inner();
        let info = first_message(&mut requests).await?;
        let mut differing_fields = (self.check)(&info);
        differing_fields.truncate(MAX_DIFFERING_FIELDS);
        let worker = info.worker_id.clone();
        let entry = self.registry.writer.register(info)?;
        let accepted = differing_fields.is_empty();
        tracing::info!(%worker, incarnation = %entry.key().1, accepted, ?differing_fields,
            "worker registered");
        // Room for the answer and for requests to drain.
        let (replies, stream) = mpsc::channel(4);
        let answer = v1::RegisterResponse {
            accepted,
            drain: false,
            differing_fields,
        };
        // The channel is new and has room.
        let _ = replies.try_send(Ok(answer));
        tokio::spawn(follow(self.registry.clone(), entry, requests, replies));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

async fn first_message(
    requests: &mut Streaming<v1::RegisterRequest>,
) -> Result<WorkerInfo, Status> {
    let first = tokio::time::timeout(FIRST_MESSAGE, requests.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no registration within 5 s"))??;
    match first.and_then(|request| request.message) {
        Some(Message::Info(info)) => Ok(WorkerInfo::try_from(info)?),
        _ => Err(Status::invalid_argument(
            "the first message of a registration is its info",
        )),
    }
}

/// Keeps the entry for as long as the stream lives.
async fn follow(
    registry: Registry,
    entry: Entry,
    mut requests: Streaming<v1::RegisterRequest>,
    replies: Replies,
) {
    let lock = || registry.open.lock().unwrap_or_else(PoisonError::into_inner);
    lock().insert(entry.key().clone(), replies.clone());
    let ended = loop {
        let request = tokio::select! {
            () = replies.closed() => break "the worker is gone".to_owned(),
            status = entry.displaced() => {
                let reason = status.message().to_owned();
                // It registers again, or learns from the refusal who is in its place.
                let _ = replies.try_send(Err(status));
                break reason;
            }
            request = requests.next() => request,
        };
        match request {
            Some(Ok(v1::RegisterRequest {
                message: Some(Message::Load(load)),
            })) => match WorkerLoad::try_from(load) {
                Ok(load) => entry.report(load),
                Err(error) => {
                    tracing::warn!(worker = %entry.key().0, %error, "load report refused");
                    entry.refuse_report();
                }
            },
            Some(Ok(_)) => {
                let refusal = "after the first message a registration sends load reports only";
                let _ = replies.try_send(Err(Status::invalid_argument(refusal)));
                break refusal.to_owned();
            }
            Some(Err(status)) => {
                let reason = status.message().to_owned();
                // A peer that is still there (its message was too large, say) is told.
                let _ = replies.try_send(Err(status));
                break reason;
            }
            None => break "the registration ended".to_owned(),
        }
    };
    let mut open = lock();
    if open
        .get(entry.key())
        .is_some_and(|current| current.same_channel(&replies))
    {
        open.remove(entry.key());
    }
    tracing::info!(worker = %entry.key().0, incarnation = %entry.key().1, ended, "worker gone");
}
