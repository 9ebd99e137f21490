//! Asking the router. It must not know what is shown.

use std::future::Future;
use std::time::{Duration, Instant};

use baton_proto::v1::admin_service_client::AdminServiceClient;
use baton_proto::v1::{
    DrainRequest, GetHistoryRequest, GetHistoryResponse, GetRequestRequest, GetRequestResponse,
    ListRequestsRequest, ListRequestsResponse, ListWorkersRequest, ListWorkersResponse,
    RequestRecord,
};
use tonic::{Response, Status};

use crate::client::Connection;
use crate::exit::Failure;

/// Time for the router to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time for a worker to say that it drains.
const DRAIN_PATIENCE: Duration = Duration::from_secs(8);

/// What the router has said, all at one time.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) workers: ListWorkersResponse,
    pub(super) requests: ListRequestsResponse,
    pub(super) history: GetHistoryResponse,
    pub(super) at: Instant,
}

/// An answer.
#[derive(Debug)]
pub(super) enum Heard {
    All(Result<Known, Status>),
    Request(Result<Box<RequestRecord>, Status>),
    /// What came of something, in words.
    Said(String),
}

/// A router that is asked.
#[derive(Clone)]
pub(super) struct Watch(AdminServiceClient<Connection>);

impl Watch {
    pub(super) fn new(client: AdminServiceClient<Connection>) -> Self {
        Self(client)
    }

    /// Everything, or the failure that ends the command.
    pub(super) async fn first(&self) -> Result<Known, Failure> {
        let known = self.all().await;
        known.map_err(|status| Failure::from_status(&status))
    }

    /// Everything.
    pub(super) async fn all(&self) -> Result<Known, Status> {
        let (mut one, mut two, mut three) = (self.0.clone(), self.0.clone(), self.0.clone());
        let (mut workers, requests, history) = tokio::try_join!(
            soon(PATIENCE, one.list_workers(ListWorkersRequest {})),
            soon(
                PATIENCE,
                two.list_requests(ListRequestsRequest { limit: 0 })
            ),
            soon(
                PATIENCE,
                three.get_history(GetHistoryRequest { seconds: 0 })
            ),
        )?;
        // Prefill stands before decode, as in a request's life.
        (workers.workers).sort_by_key(|worker| worker.info.as_ref().map(|info| info.role));
        Ok(Known {
            workers,
            requests,
            history,
            at: Instant::now(),
        })
    }

    /// One request with its receipt.
    pub(super) async fn request(&self, id: &str) -> Result<Box<RequestRecord>, Status> {
        let request = GetRequestRequest {
            request: id.to_owned(),
        };
        let GetRequestResponse { request, .. } =
            soon(PATIENCE, self.0.clone().get_request(request)).await?;
        request
            .map(Box::new)
            .ok_or_else(|| Status::not_found("the router says nothing of this request"))
    }

    /// Asks for a drain; what came of it in words.
    pub(super) async fn drain(&self, worker: &str) -> String {
        let request = DrainRequest {
            worker_id: worker.to_owned(),
        };
        match soon(DRAIN_PATIENCE, self.0.clone().drain(request)).await {
            Ok(drained) => format!(
                "{worker} drains; {} requests still run there",
                drained.running
            ),
            Err(status) => format!("{worker} was not drained: {}", status.message()),
        }
    }
}

async fn soon<T>(
    patience: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(patience, call).await {
        Ok(answer) => answer.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "no answer within {patience:?}"
        ))),
    }
}
