//! What operators see and do, whatever protocol they come by.
//!
//! It must not know requests beyond what is remembered of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use baton_cluster::Membership;
use baton_cluster::http2::MAX_MESSAGE_BYTES;
use baton_proto::ids::{Incarnation, WorkerId};
use baton_proto::v1;
use baton_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::time::Instant;
use tonic::Status;

use crate::shared::Shared;
use crate::workers::{Worker, WorkerView};

/// Time for a worker to confirm that it drains.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Most workers of one name that a refusal lists.
const MAX_LISTED: usize = 8;

/// The router as its operators know it.
#[derive(Debug)]
pub(crate) struct Operations {
    pub(crate) shared: Arc<Shared>,
    pub(crate) membership: Arc<Membership>,
    /// This process start.
    pub(crate) incarnation: Incarnation,
    /// Callers have shown keys.
    pub(crate) keyed: bool,
}

impl Operations {
    /// The router and its workers.
    pub(crate) fn workers(&self) -> v1::ListWorkersResponse {
        let views = self.shared.directory.views();
        let refused_loads = views.iter().map(|view| view.refused_loads).sum();
        let mut counters = self.shared.counters.snapshot();
        counters.insert("loads_refused".to_owned(), refused_loads);
        let traces = self.shared.tracer().counters();
        counters.extend(traces.map(|(name, count)| (name.to_owned(), count)));
        let membership = self.membership.counters().into_iter();
        counters.extend(membership.map(|(name, count)| (name.to_owned(), count)));
        let router = v1::RouterStatus {
            pid: std::process::id(),
            incarnation: self.incarnation.0,
            requests_waiting: self.shared.gate.waiting() as u32,
            requests_running: self.shared.gate.inside() as u32,
            counters,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        v1::ListWorkersResponse {
            workers: views.iter().map(status).collect(),
            router: Some(router),
        }
    }

    /// Whether this caller, whose key has been looked at if there are keys, may change anything.
    pub(crate) fn may_change(&self, caller: Option<SocketAddr>) -> Result<(), Status> {
        let is_here = caller.is_none_or(|address| address.ip().to_canonical().is_loopback());
        if self.keyed || is_here {
            return Ok(());
        }
        Err(Status::permission_denied(
            "draining from another machine needs an admin key, and this router has none (--api-keys)",
        ))
    }

    /// Asks the worker of this name to finish what runs; how many requests that are.
    pub(crate) async fn drain(&self, name: &str) -> Result<u32, Status> {
        let id = WorkerId::new(name)
            .ok_or_else(|| Status::invalid_argument("worker_id must match [A-Za-z0-9._-]{1,64}"))?;
        let workers: Vec<_> = (self.shared.directory.views().into_iter())
            .map(|view| view.worker)
            .filter(|worker| worker.key.0 == id)
            .collect();
        let worker = match &workers[..] {
            [] => return Err(Status::not_found(format!("no worker {id}"))),
            [worker] => worker,
            several => return Err(ambiguous(&id, several)),
        };
        worker.drain();
        let asked = ask_to_drain(worker).await;
        if asked.is_err() {
            // Its registration may still reach it. Not before: one that has nothing to finish would be gone before it
            // could answer.
            self.membership.request_drain(&worker.key);
        }
        asked
    }
}

/// The operator meant one of them.
fn ambiguous(id: &WorkerId, workers: &[Arc<Worker>]) -> Status {
    let which: Vec<_> = (workers.iter().take(MAX_LISTED))
        .map(|worker| format!("incarnation {} at {}", worker.key.1, worker.info.address))
        .collect();
    Status::failed_precondition(format!(
        "{} workers are named {id}, none was drained: {}",
        workers.len(),
        which.join(", ")
    ))
}

async fn ask_to_drain(worker: &Worker) -> Result<u32, Status> {
    let mut client = WorkerServiceClient::new(worker.channel.clone())
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let asked = client.drain_worker(v1::DrainWorkerRequest {
        incarnation: worker.key.1.0,
    });
    match tokio::time::timeout(DRAIN_TIMEOUT, asked).await {
        Ok(Ok(response)) => Ok(response.into_inner().running),
        Ok(Err(status)) => Err(status),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "{} does not answer",
            worker.key.0
        ))),
    }
}

fn status(view: &WorkerView) -> v1::WorkerStatus {
    let age = view.load_at.map_or(Duration::MAX, |at| {
        Instant::now().saturating_duration_since(at)
    });
    v1::WorkerStatus {
        state: view.state(),
        in_flight: view.worker.in_flight(),
        load_age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        info: Some((*view.worker.info).clone().into()),
        load: Some((*view.load).clone().into()),
    }
}
