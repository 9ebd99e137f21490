//! The gRPC server of a worker: the role's service, `WorkerService`, health and reflection.
//!
//! Health has three names: `live` from the start of the process, `ready` (and the empty name) while
//! the worker may be placed. It must not know when that is.

use baton_cluster::{Accept, Places, Strangers, Tls, http2, incoming_under};
use baton_proto::FILE_DESCRIPTOR_SET;
use baton_proto::v1::worker_service_server::WorkerServiceServer;
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, RoutesBuilder};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::service::WorkerFront;
use crate::{Role, Slot, WorkerError};

/// Name of liveness in `grpc.health.v1`.
const LIVE: &str = "live";
/// Name of readiness in `grpc.health.v1`.
const READY: &str = "ready";

/// Most open connections: routers, probes and operators.
const MAX_CONNECTIONS: usize = 256;

/// Tells probes how the worker is.
#[derive(Clone)]
pub(crate) struct Health(HealthReporter);

impl Health {
    /// Live, not ready.
    pub(crate) async fn new() -> Self {
        let health = Self(HealthReporter::new());
        health
            .0
            .set_service_status(LIVE, ServingStatus::Serving)
            .await;
        health.set_ready(false).await;
        health
    }

    /// Whether the worker may be placed.
    pub(crate) async fn set_ready(&self, ready: bool) {
        self.0.set_service_status(READY, status(ready)).await;
        self.0.set_service_status("", status(ready)).await;
    }

    /// Whether the process should be left alone; one that should not is not ready either.
    pub(crate) async fn set_live(&self, live: bool) {
        if !live {
            self.set_ready(false).await;
        }
        self.0.set_service_status(LIVE, status(live)).await;
    }
}

fn status(serving: bool) -> ServingStatus {
    if serving {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

/// Serves until `stop`, then lets open calls end.
pub(crate) async fn serve<R: Role>(
    listener: impl Accept,
    tls: Option<Tls>,
    slot: Slot<R>,
    health: Health,
    stop: CancellationToken,
) -> Result<(), WorkerError> {
    let routes = routes(slot, health, stop.clone())?;
    let tls = tls.map(|tls| (tls, Strangers::Refused));
    let incoming = incoming_under(listener, Places::new(MAX_CONNECTIONS), tls);
    let stopped = async move { stop.cancelled().await };
    http2::server()
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, stopped)
        .await?;
    Ok(())
}

fn routes<R: Role>(
    slot: Slot<R>,
    health: Health,
    stop: CancellationToken,
) -> Result<Routes, WorkerError> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let broken = |error: tonic_reflection::server::Error| WorkerError::Internal(error.to_string());
    let mut routes = RoutesBuilder::default();
    routes
        .add_service(tonic_health::pb::health_server::HealthServer::new(
            tonic_health::server::HealthService::from_health_reporter(health.0),
        ))
        .add_service(reflection().build_v1().map_err(broken)?)
        .add_service(reflection().build_v1alpha().map_err(broken)?)
        .add_service(
            WorkerServiceServer::new(WorkerFront {
                slot: slot.clone(),
                stop,
            })
            .max_decoding_message_size(http2::MAX_MESSAGE_BYTES),
        );
    R::add_service(slot, &mut routes);
    Ok(routes.routes())
}
