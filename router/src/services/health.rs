//! `grpc.health.v1`: `live` while the process serves, `ready` (and the unnamed service, and the
//! clients' service by name) while requests can be answered.
//!
//! Ready means one compatible decode worker that takes requests: it also prefills when no prefill
//! worker is there. It must not know why a worker does not fit.

use std::sync::Arc;

use baton_proto::v1::inference_service_server::SERVICE_NAME;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::HealthReporter;

use crate::shared::Shared;

const READY_NAMES: [&str; 3] = ["", "ready", SERVICE_NAME];

/// Reporter and service; live, not ready.
pub(crate) async fn health() -> (HealthReporter, HealthServer<impl Health>) {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter
        .set_service_status("live", ServingStatus::Serving)
        .await;
    set_ready(&reporter, false).await;
    (reporter, service)
}

pub(crate) async fn set_ready(reporter: &HealthReporter, ready: bool) {
    let status = if ready {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    for name in READY_NAMES {
        reporter.set_service_status(name, status).await;
    }
}

/// Follows the member table for as long as it is polled.
pub(crate) async fn keep_health(reporter: HealthReporter, shared: Arc<Shared>) {
    let mut members = shared.directory.members();
    let mut was_ready = false;
    loop {
        members.borrow_and_update();
        let ready = shared.directory.is_ready();
        if ready != was_ready {
            tracing::info!(ready, "readiness changed");
            set_ready(&reporter, ready).await;
            was_ready = ready;
        }
        if members.changed().await.is_err() {
            return;
        }
    }
}
