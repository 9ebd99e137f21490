//! Workers that answer at once: the worker protocol in its full order, without a model. Pages are handed over in
//! memory. They must not know who asks.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use baton_proto::domain::{WorkerInfo, WorkerLoad};
use baton_proto::v1;
use baton_proto::v1::decode_response::Event as Decode;
use baton_proto::v1::decode_service_server::DecodeService;
use baton_proto::v1::prefill_response::Event as Prefill;
use baton_proto::v1::prefill_service_server::PrefillService;
use baton_proto::v1::worker_service_server::WorkerService;
use baton_proto::v1::{decode_request, prefill_request};
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use tokio::sync::{oneshot, watch};
use tonic::{Request, Response, Status, Streaming};

/// What a service answers with.
type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Hand-offs that a decode worker waits for, by the number in their transfer id.
#[derive(Debug, Default)]
pub(crate) struct HandOffs {
    last: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<()>>>,
}

impl HandOffs {
    fn expect(&self) -> (u64, oneshot::Receiver<()>) {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(number, sender);
        (number, receiver)
    }

    /// Hands the pages over; false if nobody waits for them.
    fn commit(&self, transfer_id: &[u8]) -> bool {
        let number = transfer_id.first_chunk().map(|id| u64::from_le_bytes(*id));
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = number.and_then(|number| waiting.remove(&number));
        expected.is_some_and(|sender| sender.send(()).is_ok())
    }
}

/// One worker of either role.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) info: Arc<WorkerInfo>,
    pub(crate) load: watch::Receiver<WorkerLoad>,
    pub(crate) hand_offs: Arc<HandOffs>,
    /// What every token is.
    pub(crate) token_id: u32,
}

impl Worker {
    fn token(&self, spec: &v1::SequenceSpec, position: u32) -> v1::GeneratedToken {
        let is_last = position + 1 == most_tokens(spec);
        v1::GeneratedToken {
            attempt: spec.attempt,
            choice: 0,
            position,
            token_id: self.token_id,
            logprobs: None,
            finish_reason: i32::from(is_last) * v1::FinishReason::Length as i32,
        }
    }

    fn grant(&self, spec: &v1::SequenceSpec, number: u64) -> v1::Grant {
        let page_size = self.info.fingerprint.page_size as usize;
        let mut transfer_id = vec![0; 16];
        transfer_id[..8].copy_from_slice(&number.to_le_bytes());
        let slot = |page| v1::PageSlot {
            page,
            generation: 1,
        };
        let pages = spec.prompt_ids.len().div_ceil(page_size) as u32;
        v1::Grant {
            transfer_id,
            attempt: spec.attempt,
            incarnation: self.info.incarnation.0,
            slots: (0..pages).map(slot).collect(),
            fingerprint: Some(self.info.fingerprint.clone().into()),
            reused_pages: 0,
            endpoints: vec![v1::TransferEndpoint {
                transport: "tcp".to_owned(),
                address: self.info.address.clone(),
                host_id: self.info.host_id.clone(),
            }],
            secret: vec![7; 32],
            lease_ms: 5000,
            ..v1::Grant::default()
        }
    }

    /// The tokens of one choice from `first` on, and the report.
    fn tokens(&self, spec: &v1::SequenceSpec, first: u32) -> Vec<Decode> {
        let tokens = (first..most_tokens(spec)).map(|at| Decode::Token(self.token(spec, at)));
        let done = Decode::Done(v1::DecodeDone {
            landing_us: 1,
            ..v1::DecodeDone::default()
        });
        tokens.chain([done]).collect()
    }
}

fn most_tokens(spec: &v1::SequenceSpec) -> u32 {
    spec.sampling
        .as_ref()
        .and_then(|sampling| sampling.max_tokens)
        .unwrap_or(1)
}

fn prefilled(event: Prefill) -> v1::PrefillResponse {
    v1::PrefillResponse { event: Some(event) }
}

fn decoded(event: Decode) -> v1::DecodeResponse {
    v1::DecodeResponse { event: Some(event) }
}

/// The attempt that the pages were handed over for.
async fn handed_over(
    mut commands: Streaming<v1::PrefillRequest>,
    hand_offs: &HandOffs,
) -> Result<u32, Status> {
    while let Some(command) = commands.message().await? {
        if let Some(prefill_request::Message::Grant(grant)) = command.message
            && hand_offs.commit(&grant.transfer_id)
        {
            return Ok(grant.attempt);
        }
    }
    Err(Status::cancelled("no grant"))
}

#[tonic::async_trait]
impl PrefillService for Worker {
    type PrefillStream = Events<v1::PrefillResponse>;

    async fn prefill(
        &self,
        request: Request<Streaming<v1::PrefillRequest>>,
    ) -> Result<Response<Self::PrefillStream>, Status> {
        let mut commands = request.into_inner();
        let first = commands.message().await?.and_then(|first| first.message);
        let Some(prefill_request::Message::Start(start)) = first else {
            return Err(Status::invalid_argument("start first"));
        };
        let spec = start
            .spec
            .ok_or_else(|| Status::invalid_argument("no spec"))?;
        let begins = [
            Prefill::Scheduled(v1::PrefillScheduled::default()),
            Prefill::FirstToken(self.token(&spec, 0)),
        ];
        let hand_offs = Arc::clone(&self.hand_offs);
        let ends = async move {
            let attempt = if start.hand_off {
                handed_over(commands, &hand_offs).await?
            } else {
                0
            };
            let transport = if start.hand_off { "tcp" } else { "" };
            Ok(prefilled(Prefill::Done(v1::PrefillDone {
                transport: transport.to_owned(),
                committed: start.hand_off,
                attempt,
                ..v1::PrefillDone::default()
            })))
        };
        let events = stream::iter(begins.map(prefilled).map(Ok)).chain(ends.into_stream());
        Ok(Response::new(events.boxed()))
    }
}

#[tonic::async_trait]
impl DecodeService for Worker {
    type DecodeStream = Events<v1::DecodeResponse>;

    async fn decode(
        &self,
        request: Request<Streaming<v1::DecodeRequest>>,
    ) -> Result<Response<Self::DecodeStream>, Status> {
        let mut commands = request.into_inner();
        let first = commands.message().await?.and_then(|first| first.message);
        let Some(decode_request::Message::Start(start)) = first else {
            return Err(Status::invalid_argument("start first"));
        };
        let spec = start
            .spec
            .ok_or_else(|| Status::invalid_argument("no spec"))?;
        if start.local_prefill {
            let scheduled = Decode::Scheduled(v1::PrefillScheduled::default());
            let events = [scheduled].into_iter().chain(self.tokens(&spec, 0));
            let events = stream::iter(events.map(decoded).map(Ok).collect::<Vec<_>>());
            return Ok(Response::new(events.boxed()));
        }
        let (number, committed) = self.hand_offs.expect();
        let grant = Decode::Grant(self.grant(&spec, number));
        let worker = self.clone();
        let lands = async move {
            // Open as long as the leg is.
            let _commands = commands;
            if committed.await.is_err() {
                return stream::iter(vec![Err(Status::aborted("no hand-off"))]);
            }
            let landed = Decode::Landed(v1::Landed {
                attempt: spec.attempt,
                first_tokens: vec![worker.token(&spec, 0)],
            });
            let events = [landed].into_iter().chain(worker.tokens(&spec, 1));
            stream::iter(events.map(decoded).map(Ok).collect::<Vec<_>>())
        };
        let events = stream::iter([Ok(decoded(grant))]).chain(lands.flatten_stream());
        Ok(Response::new(events.boxed()))
    }
}

#[tonic::async_trait]
impl WorkerService for Worker {
    type WatchLoadStream = Events<v1::WatchLoadResponse>;

    async fn get_worker(
        &self,
        _: Request<v1::GetWorkerRequest>,
    ) -> Result<Response<v1::GetWorkerResponse>, Status> {
        let load = self.load.borrow().clone();
        Ok(Response::new(v1::GetWorkerResponse {
            info: Some((*self.info).clone().into()),
            load: Some(load.into()),
        }))
    }

    async fn watch_load(
        &self,
        _: Request<v1::WatchLoadRequest>,
    ) -> Result<Response<Self::WatchLoadStream>, Status> {
        Ok(Response::new(stream::pending().boxed()))
    }

    async fn drain_worker(
        &self,
        _: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        Ok(Response::new(v1::DrainWorkerResponse::default()))
    }
}
