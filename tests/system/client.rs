//! A client of a router, and of single workers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use baton_proto::v1::admin_service_client::AdminServiceClient;
use baton_proto::v1::inference_service_client::InferenceServiceClient;
use baton_proto::v1::worker_service_client::WorkerServiceClient;
use baton_proto::v1::{
    GenerateRequest, GenerateResponse, GetWorkerRequest, ListWorkersRequest, ListWorkersResponse,
    PageLedger, WorkerLoad,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::answer::Answer;
use crate::process::PATIENCE;

/// A client of one router.
#[derive(Clone)]
pub(crate) struct Client {
    /// The router's `host:port`.
    pub(crate) address: String,
    channel: Channel,
}

impl Client {
    /// Connects.
    pub(crate) async fn connect(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            channel: endpoint(address).connect().await.expect("it answers"),
        }
    }

    /// Connects, if there is a router that answers.
    pub(crate) async fn try_connect(address: &str) -> Option<(Self, ListWorkersResponse)> {
        let channel = endpoint(address).connect().await.ok()?;
        let mut admin = AdminServiceClient::new(channel.clone());
        let status = admin.list_workers(ListWorkersRequest {}).await.ok()?;
        let status = status.into_inner();
        let address = address.to_owned();
        Some((Self { address, channel }, status))
    }

    /// Connects in a way that lets at most so many bytes of a stream lie unread.
    pub(crate) async fn connect_with_window(address: &str, window: u32) -> Self {
        let endpoint = endpoint(address).initial_stream_window_size(window);
        Self {
            address: address.to_owned(),
            channel: endpoint.connect().await.expect("it answers"),
        }
    }

    /// For calls of the client API.
    pub(crate) fn inference(&self) -> InferenceServiceClient<Channel> {
        InferenceServiceClient::new(self.channel.clone())
    }

    /// Sends a request and leaves its stream to the caller.
    pub(crate) async fn open(&self, request: GenerateRequest) -> Streaming<GenerateResponse> {
        let opened = self.inference().generate(request).await;
        opened.expect("accepted").into_inner()
    }

    /// Sends one request and waits for all of its answer.
    pub(crate) async fn generate(&self, request: GenerateRequest) -> Result<Answer, Status> {
        let call = async {
            let events = self.inference().generate(request).await?.into_inner();
            rest(events, Answer::default()).await
        };
        tokio::time::timeout(PATIENCE, call)
            .await
            .expect("an answer comes in time")
    }

    /// The router's view of its workers.
    pub(crate) async fn status(&self) -> ListWorkersResponse {
        AdminServiceClient::new(self.channel.clone())
            .list_workers(ListWorkersRequest {})
            .await
            .expect("status answers")
            .into_inner()
    }

    /// One of the router's counters.
    pub(crate) async fn counter(&self, name: &str) -> u64 {
        let router = self.status().await.router.expect("router");
        *router.counters.get(name).unwrap_or_else(|| {
            panic!("no counter {name} in {:?}", router.counters);
        })
    }

    /// Process ids of the workers, by name.
    pub(crate) async fn pids(&self) -> BTreeMap<String, u32> {
        let workers = self.status().await.workers.into_iter();
        let infos = workers.filter_map(|worker| worker.info);
        infos.map(|info| (info.worker_id, info.pid)).collect()
    }

    /// Addresses of the workers, by name.
    pub(crate) async fn addresses(&self) -> BTreeMap<String, String> {
        let workers = self.status().await.workers.into_iter();
        let infos = workers.filter_map(|worker| worker.info);
        infos.map(|info| (info.worker_id, info.address)).collect()
    }

    /// Waits until the router knows so many workers that it can place requests on.
    pub(crate) async fn until_ready(&self, workers: usize) {
        let begin = Instant::now();
        loop {
            let status = self.status().await;
            let ready = status.workers.iter().filter(|one| one.state == "ready");
            if ready.count() == workers {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{workers} workers are not ready: {status:#?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until no worker holds anything for a request, then checks every ledger.
    pub(crate) async fn assert_idle(&self) {
        let begin = Instant::now();
        loop {
            let status = self.status().await;
            let quiet = status
                .workers
                .iter()
                .all(|worker| worker.in_flight == 0 && worker.load.as_ref().is_some_and(is_idle));
            let router = status.router.as_ref().expect("router");
            let inside = router.requests_running + router.requests_waiting;
            if quiet && inside == 0 && !status.workers.is_empty() {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "something is still held: {status:#?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Takes a stream to its end.
pub(crate) async fn rest(
    mut events: Streaming<GenerateResponse>,
    mut answer: Answer,
) -> Result<Answer, Status> {
    while let Some(response) = events.message().await? {
        answer.take(response);
    }
    assert!(
        answer.receipt.is_some(),
        "a stream ended well without its final event"
    );
    Ok(answer)
}

/// Asks workers directly, without any router.
#[derive(Clone)]
pub(crate) struct WorkerClient {
    address: String,
    client: WorkerServiceClient<Channel>,
}

impl WorkerClient {
    /// Connects.
    pub(crate) async fn connect(address: &str) -> Self {
        let channel = endpoint(address).connect().await.expect("it answers");
        Self {
            address: address.to_owned(),
            client: WorkerServiceClient::new(channel),
        }
    }

    /// What the worker has now.
    pub(crate) async fn load(&self) -> WorkerLoad {
        let asked = self.client.clone().get_worker(GetWorkerRequest {}).await;
        let answer = asked.expect("the worker answers").into_inner();
        answer.load.expect("a loaded worker")
    }

    /// What the worker has now, if it answers within `limit`.
    pub(crate) async fn try_load(&self, limit: Duration) -> Option<WorkerLoad> {
        let mut client = self.client.clone();
        let asked = tokio::time::timeout(limit, client.get_worker(GetWorkerRequest {})).await;
        asked.ok()?.ok()?.into_inner().load
    }

    /// Waits until the worker's load is as wanted.
    pub(crate) async fn when(
        &self,
        what: &str,
        wanted: impl Fn(&WorkerLoad) -> bool,
    ) -> WorkerLoad {
        self.within(PATIENCE, what, wanted).await
    }

    /// Waits, no longer than `limit`, until the worker's load is as wanted.
    pub(crate) async fn within(
        &self,
        limit: Duration,
        what: &str,
        wanted: impl Fn(&WorkerLoad) -> bool,
    ) -> WorkerLoad {
        let begin = Instant::now();
        loop {
            let load = self.load().await;
            if wanted(&load) {
                return load;
            }
            assert!(
                begin.elapsed() < limit,
                "{} did not come to be {what} within {limit:?}: {load:?}",
                self.address
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The ledger of a load report, which must add up.
pub(crate) fn ledger(load: &WorkerLoad) -> PageLedger {
    let pages = load.pages.expect("every report has a ledger");
    let sum = pages.free + pages.cached + pages.live + pages.granted + pages.quarantined;
    assert_eq!(sum, pages.total, "pages are conserved: {pages:?}");
    pages
}

/// Whether a worker runs nothing and holds nothing.
pub(crate) fn is_idle(load: &WorkerLoad) -> bool {
    let pages = ledger(load);
    load.running + load.queued + pages.live + pages.granted + pages.quarantined == 0
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}"))
        .expect("an address")
        .tcp_nodelay(true)
}
