//! `grpc.health.v1` as probes ask it.

use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// A prober of one process.
pub(crate) struct Health(HealthClient<Channel>);

impl Health {
    /// Connects to `host:port`.
    pub(crate) async fn connect(address: &str) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        Self(HealthClient::new(
            endpoint.connect().await.expect("it listens"),
        ))
    }

    /// Whether it says that this service is served.
    pub(crate) async fn is_serving(&self, service: &str) -> bool {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = self.0.clone().check(request).await.expect("an answer");
        answer.into_inner().status() == ServingStatus::Serving
    }
}
