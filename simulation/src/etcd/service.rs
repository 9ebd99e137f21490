//! etcd's services over one store. It must not know when anything goes wrong, only how it then behaves.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_cluster::PeerInfo;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::store::{Range, Store};
use super::wire::kv_server::Kv;
use super::wire::lease_server::Lease;
use super::wire::watch_request::RequestUnion;
use super::wire::watch_server::Watch;
use super::wire::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};

/// Messages that may wait for a client.
const WAITING: usize = 16;

/// What is wrong with it, where it does not do what etcd does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A watch of a range begins one revision late.
    Revisions,
    /// Whoever asks for an ended lease to be kept is told that it lives, and nobody that its key is gone.
    Leases,
    /// Leases do not end by themselves.
    Endless,
}

/// Requests of one machine in one second, as seconds go by.
pub type Calls = BTreeMap<(IpAddr, u64), u64>;

/// What all connections share.
#[derive(Clone)]
pub(super) struct Service {
    shared: Arc<Mutex<Shared>>,
    changed: watch::Sender<()>,
    flaw: Option<Flaw>,
    started: Instant,
}

struct Shared {
    store: Store,
    calls: Calls,
    /// Answers wait for so long.
    late: Duration,
    /// Watches from before say nothing any more.
    deaf: u64,
}

type Answers<T> = ReceiverStream<Result<T, Status>>;

impl Service {
    pub(super) fn new(store: Store, flaw: Option<Flaw>) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Shared {
                store,
                calls: Calls::new(),
                late: Duration::ZERO,
                deaf: 0,
            })),
            changed: watch::Sender::new(()),
            flaw,
            started: Instant::now(),
        }
    }

    /// Reads or changes the store; watches hear of it.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Store) -> R) -> R {
        let result = change(&mut self.lock().store);
        self.changed.send_replace(());
        result
    }

    /// Ends leases that were not kept alive; how many.
    pub(super) fn expire(&self) -> usize {
        if self.flaw == Some(Flaw::Endless) {
            return 0;
        }
        self.with(|store| store.expire(Instant::now()))
    }

    pub(super) fn calls(&self) -> Calls {
        self.lock().calls.clone()
    }

    pub(super) fn answer_late(&self, late: Duration) {
        self.lock().late = late;
    }

    pub(super) fn deafen(&self) {
        self.lock().deaf += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, from: Option<IpAddr>) {
        let second = self.started.elapsed().as_secs();
        if let Some(from) = from {
            *self.lock().calls.entry((from, second)).or_default() += 1;
        }
    }

    /// A request has come: it is counted, and waits if answers are late.
    async fn arrives<T>(&self, request: Request<T>) -> T {
        self.count(sender(&request));
        self.lateness().await;
        request.into_inner()
    }

    async fn lateness(&self) {
        let late = self.lock().late;
        tokio::time::sleep(late).await;
    }

    fn keep(&self, id: i64) -> LeaseKeepAliveResponse {
        let mut ttl = self.with(|store| store.keep(id, Instant::now()));
        if ttl == 0 && self.flaw == Some(Flaw::Leases) {
            ttl = 1;
        }
        LeaseKeepAliveResponse {
            header: Some(self.lock().store.header()),
            id,
            ttl,
        }
    }
}

fn sender<T>(request: &Request<T>) -> Option<IpAddr> {
    let address = PeerInfo::of(request)?.address?;
    Some(address.ip())
}

#[tonic::async_trait]
impl Kv for Service {
    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let asked = self.arrives(request).await;
        self.lock().store.range(&asked).map(Response::new)
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let asked = self.arrives(request).await;
        self.with(|store| store.txn(asked)).map(Response::new)
    }
}

#[tonic::async_trait]
impl Lease for Service {
    type LeaseKeepAliveStream = Answers<LeaseKeepAliveResponse>;

    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let asked = self.arrives(request).await;
        let id = self.with(|store| store.grant(asked.ttl, Instant::now()));
        Ok(Response::new(LeaseGrantResponse {
            header: Some(self.lock().store.header()),
            id,
            ttl: asked.ttl,
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let asked = self.arrives(request).await;
        self.with(|store| store.revoke(asked.id))?;
        let header = Some(self.lock().store.header());
        Ok(Response::new(LeaseRevokeResponse { header }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let from = sender(&request);
        let mut asked = request.into_inner();
        let (answers, stream) = mpsc::channel(WAITING);
        let service = self.clone();
        tokio::spawn(async move {
            while let Ok(Some(one)) = asked.message().await {
                service.count(from);
                service.lateness().await;
                if answers.send(Ok(service.keep(one.id))).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

#[tonic::async_trait]
impl Watch for Service {
    type WatchStream = Answers<WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let from = sender(&request);
        let (answers, stream) = mpsc::channel(WAITING);
        let watching = Watching {
            service: self.clone(),
            answers,
            watched: None,
            deaf: self.lock().deaf,
        };
        tokio::spawn(watching.run(from, request.into_inner()));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// A stream with one watch, which is all that membership asks of one.
struct Watching {
    service: Service,
    answers: mpsc::Sender<Result<WatchResponse, Status>>,
    /// What is watched, and from which revision on it has not been told.
    watched: Option<(Range, i64)>,
    deaf: u64,
}

/// Nobody listens any more.
struct Gone;

impl Watching {
    async fn run(mut self, from: Option<IpAddr>, mut asked: Streaming<WatchRequest>) {
        let mut changed = self.service.changed.subscribe();
        loop {
            let told = tokio::select! {
                () = self.answers.closed() => return,
                one = asked.message() => match one {
                    Ok(Some(one)) => {
                        self.service.count(from);
                        self.take(one).await
                    }
                    _ => return,
                },
                // The other side is a part of the service.
                _ = changed.changed() => self.tell().await,
            };
            if told.is_err() {
                return;
            }
        }
    }

    async fn take(&mut self, asked: WatchRequest) -> Result<(), Gone> {
        match asked.request_union {
            Some(RequestUnion::CreateRequest(asked)) => {
                self.service.lateness().await;
                self.create(&asked).await
            }
            Some(RequestUnion::ProgressRequest(_)) => self.say(WatchResponse::default()).await,
            // Membership drops the stream instead.
            Some(RequestUnion::CancelRequest(_)) | None => Err(Gone),
        }
    }

    async fn create(&mut self, asked: &WatchCreateRequest) -> Result<(), Gone> {
        let range = Range::new(&asked.key, &asked.range_end);
        let mut from = match asked.start_revision {
            0 => self.service.lock().store.revision() + 1,
            from => from,
        };
        if self.service.flaw == Some(Flaw::Revisions) && !range.is_one() {
            from += 1;
        }
        self.watched = Some((range, from));
        self.say(WatchResponse {
            created: true,
            ..WatchResponse::default()
        })
        .await?;
        self.tell().await
    }

    /// Says what has happened since it was last said.
    async fn tell(&mut self) -> Result<(), Gone> {
        let Some((range, from)) = self.watched.as_mut() else {
            return Ok(());
        };
        if self.service.flaw == Some(Flaw::Leases) && range.is_one() {
            return Ok(());
        }
        let (events, next) = {
            let shared = self.service.lock();
            let next = (shared.store.revision() + 1).max(*from);
            (shared.store.events(range, *from), next)
        };
        match events {
            Ok(events) => {
                *from = next;
                if events.is_empty() {
                    return Ok(());
                }
                self.say(WatchResponse {
                    events,
                    ..WatchResponse::default()
                })
                .await
            }
            Err(compact_revision) => {
                self.watched = None;
                self.say(WatchResponse {
                    canceled: true,
                    compact_revision,
                    cancel_reason: "etcdserver: mvcc: required revision has been compacted".into(),
                    ..WatchResponse::default()
                })
                .await
            }
        }
    }

    async fn say(&self, what: WatchResponse) -> Result<(), Gone> {
        let header = {
            let shared = self.service.lock();
            if shared.deaf > self.deaf {
                return Ok(());
            }
            Some(shared.store.header())
        };
        let what = WatchResponse { header, ..what };
        self.answers.send(Ok(what)).await.map_err(|_| Gone)
    }
}
