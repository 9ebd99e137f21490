//! A decode worker's front that does not always say what the worker says. It must not know who asks.

use std::collections::BTreeSet;

use baton_cluster::{Accept, http2, incoming};
use baton_proto::v1;
use baton_proto::v1::decode_request::Message;
use baton_proto::v1::decode_response::Event;
use baton_proto::v1::decode_service_client::DecodeServiceClient;
use baton_proto::v1::decode_service_server::{DecodeService, DecodeServiceServer};
use baton_proto::v1::worker_service_client::WorkerServiceClient;
use baton_proto::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// Most connections.
const CONNECTIONS: usize = 64;
/// Messages that may wait on either side of a leg.
const WAITING: usize = 4;

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// The first token of a resumed sequence is said twice.
    Repeats,
    /// What has been generated before is taken for a part of the prompt.
    Positions,
    /// A leg that is given up before its pages have come is opened again, and again.
    Grants,
}

/// Forwards to the worker behind it.
#[derive(Debug, Clone)]
pub struct Front {
    worker: Channel,
    lie: Lie,
}

impl Front {
    /// Of the worker at the other end.
    pub fn new(worker: Channel, lie: Lie) -> Self {
        Self { worker, lie }
    }

    /// Serves until the listener ends.
    ///
    /// # Errors
    /// In words: what tonic has to say.
    pub async fn serve(self, listener: impl Accept) -> Result<(), String> {
        http2::server()
            .add_service(WorkerServiceServer::new(self.clone()))
            .add_service(DecodeServiceServer::new(self))
            .serve_with_incoming(incoming(listener, CONNECTIONS))
            .await
            .map_err(|error| error.to_string())
    }
}

#[tonic::async_trait]
impl WorkerService for Front {
    type WatchLoadStream = Streaming<v1::WatchLoadResponse>;

    async fn get_worker(
        &self,
        request: Request<v1::GetWorkerRequest>,
    ) -> Result<Response<v1::GetWorkerResponse>, Status> {
        let mut worker = WorkerServiceClient::new(self.worker.clone());
        worker.get_worker(request.into_inner()).await
    }

    async fn watch_load(
        &self,
        request: Request<v1::WatchLoadRequest>,
    ) -> Result<Response<Self::WatchLoadStream>, Status> {
        let mut worker = WorkerServiceClient::new(self.worker.clone());
        worker.watch_load(request.into_inner()).await
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        let mut worker = WorkerServiceClient::new(self.worker.clone());
        worker.drain_worker(request.into_inner()).await
    }
}

#[tonic::async_trait]
impl DecodeService for Front {
    type DecodeStream = ReceiverStream<Result<v1::DecodeResponse, Status>>;

    async fn decode(
        &self,
        request: Request<Streaming<v1::DecodeRequest>>,
    ) -> Result<Response<Self::DecodeStream>, Status> {
        let mut asked = request.into_inner();
        let Some(v1::DecodeRequest {
            message: Some(Message::Start(mut start)),
        }) = asked.message().await?
        else {
            return Err(Status::invalid_argument("the first message is Start"));
        };
        let spec = start.spec.get_or_insert_default();
        let resumes = spec.completions.iter().any(|one| !one.token_ids.is_empty());
        if let (Lie::Positions, true, [only]) = (self.lie, resumes, &mut spec.completions[..]) {
            spec.prompt_ids.append(&mut only.token_ids);
        }
        let (orders, events) = self.open(start.clone()).await?;
        let (told, stream) = mpsc::channel(WAITING);
        let leg = Leg {
            front: self.clone(),
            start,
            repeats: self.lie == Lie::Repeats && resumes,
            repeated: BTreeSet::new(),
        };
        tokio::spawn(leg.run(asked, orders, events, told));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl Front {
    async fn open(
        &self,
        start: v1::DecodeStart,
    ) -> Result<
        (
            mpsc::Sender<v1::DecodeRequest>,
            Streaming<v1::DecodeResponse>,
        ),
        Status,
    > {
        let (orders, sent) = mpsc::channel(WAITING);
        let first = v1::DecodeRequest {
            message: Some(Message::Start(start)),
        };
        // The channel is new and has room.
        let _ = orders.try_send(first);
        let mut worker = DecodeServiceClient::new(self.worker.clone());
        let events = worker.decode(ReceiverStream::new(sent)).await?.into_inner();
        Ok((orders, events))
    }
}

/// One leg through the front.
struct Leg {
    front: Front,
    start: v1::DecodeStart,
    /// Its tokens are to be repeated.
    repeats: bool,
    /// Choices with a token that has been.
    repeated: BTreeSet<u32>,
}

impl Leg {
    async fn run(
        mut self,
        mut asked: Streaming<v1::DecodeRequest>,
        orders: mpsc::Sender<v1::DecodeRequest>,
        mut events: Streaming<v1::DecodeResponse>,
        told: mpsc::Sender<Result<v1::DecodeResponse, Status>>,
    ) {
        let (mut orders, mut landed) = (Some(orders), self.start.local_prefill);
        loop {
            tokio::select! {
                () = told.closed() => break,
                order = asked.message(), if orders.is_some() => match order {
                    Ok(Some(order)) => if let Some(orders) = &orders {
                        // A worker that has ended the leg says so below.
                        let _ = orders.send(order).await;
                    },
                    Ok(None) => orders = None,
                    Err(_) => break,
                },
                event = events.message() => {
                    let Some(event) = event.transpose() else { return };
                    let is_landing = |event: &v1::DecodeResponse| {
                        matches!(event.event, Some(Event::Landed(_)))
                    };
                    landed |= event.as_ref().is_ok_and(is_landing);
                    let over = event.is_err();
                    for event in self.alter(event) {
                        if told.send(event).await.is_err() {
                            break;
                        }
                    }
                    if over {
                        return;
                    }
                }
            }
        }
        if self.front.lie == Lie::Grants && !landed {
            drop((orders, events));
            self.keep().await;
        }
    }

    fn alter(
        &mut self,
        event: Result<v1::DecodeResponse, Status>,
    ) -> Vec<Result<v1::DecodeResponse, Status>> {
        let Ok(v1::DecodeResponse {
            event: Some(Event::Token(mut token)),
        }) = event
        else {
            return vec![event];
        };
        let mut events = Vec::new();
        let mut say = |token: &v1::GeneratedToken| {
            events.push(Ok(v1::DecodeResponse {
                event: Some(Event::Token(token.clone())),
            }));
        };
        if self.repeats {
            if self.repeated.insert(token.choice) {
                say(&token);
            }
            token.position += 1;
        }
        say(&token);
        events
    }

    /// Has the same pages granted for as long as the worker is there.
    async fn keep(self) {
        while let Ok((_orders, mut events)) = self.front.open(self.start.clone()).await {
            while let Ok(Some(_)) = events.message().await {}
        }
    }
}
