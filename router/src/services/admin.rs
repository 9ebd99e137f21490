//! The operators' service.
//!
//! It must not know what any of it is made of.

use std::sync::Arc;

use baton_cluster::PeerInfo;
use baton_proto::v1;
use baton_proto::v1::admin_service_server::AdminService;
use tonic::{Request, Response, Status};

use crate::operations::Operations;
use crate::recent::KEPT;

/// `baton.v1.AdminService`.
#[derive(Debug)]
pub(crate) struct Admin(pub(crate) Arc<Operations>);

#[tonic::async_trait]
impl AdminService for Admin {
    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        Ok(Response::new(self.0.workers()))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        self.0
            .may_change(PeerInfo::of(&request).and_then(|peer| peer.address))?;
        let running = self.0.drain(&request.into_inner().worker_id).await?;
        Ok(Response::new(v1::DrainResponse { running }))
    }

    async fn list_requests(
        &self,
        request: Request<v1::ListRequestsRequest>,
    ) -> Result<Response<v1::ListRequestsResponse>, Status> {
        let limit = request.into_inner().limit;
        Ok(Response::new(self.0.shared.recent.list(limit as usize)))
    }

    async fn get_request(
        &self,
        request: Request<v1::GetRequestRequest>,
    ) -> Result<Response<v1::GetRequestResponse>, Status> {
        let name = request.into_inner().request;
        let found = self.0.shared.recent.get(&name);
        found.map(Response::new).ok_or_else(|| {
            let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
            Status::not_found(format!(
                "no request with the id or label \"{shown}\" is remembered here, of the last {KEPT}"
            ))
        })
    }

    async fn get_history(
        &self,
        request: Request<v1::GetHistoryRequest>,
    ) -> Result<Response<v1::GetHistoryResponse>, Status> {
        let seconds = request.into_inner().seconds;
        Ok(Response::new(
            self.0.shared.recent.history(seconds as usize),
        ))
    }
}
