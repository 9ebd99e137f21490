//! Probes of quarantined workers: whether they answer again is found out by the router itself, not by a
//! client's request.
//!
//! It must not know why a worker was quarantined.

use std::sync::{Arc, Weak};
use std::time::Duration;

use baton_proto::v1::GetWorkerRequest;
use baton_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::time::Instant;

use super::slot::Worker;

/// A worker that takes longer to say who it is does not answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Probes a worker after each of its quarantines until it answers, is forgotten, or has proved itself
/// otherwise.
pub(super) fn start(worker: &Arc<Worker>) {
    let worker = Arc::downgrade(worker);
    tokio::spawn(async move { while probe(&worker).await.is_some() {} });
}

/// One round; `None`: nothing is left to find out.
async fn probe(worker: &Weak<Worker>) -> Option<()> {
    let until = worker.upgrade()?.breaker().probe_due()?;
    tokio::time::sleep_until(until).await;
    let worker = worker.upgrade()?;
    let answer = tokio::time::timeout(ANSWER, identity(&worker)).await;
    let mut breaker = worker.breaker();
    match answer.unwrap_or_else(|_| Err("it does not answer".to_owned())) {
        Ok(()) => breaker.answered(until),
        Err(reason) => breaker.unanswered(Instant::now(), until, &reason),
    }
    Some(())
}

async fn identity(worker: &Worker) -> Result<(), String> {
    let answer = WorkerServiceClient::new(worker.channel.clone())
        .get_worker(GetWorkerRequest {})
        .await
        .map_err(|status| status.message().to_owned())?;
    let here = answer.into_inner().info.map(|info| info.incarnation);
    if here == Some(worker.info.incarnation.0) {
        Ok(())
    } else {
        Err("another process answers".to_owned())
    }
}
