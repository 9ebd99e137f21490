//! Connecting to a router as a client.

use std::time::Duration;

use baton_cluster::Dialer;
use baton_proto::v1::admin_service_client::AdminServiceClient;
use baton_proto::v1::inference_service_client::InferenceServiceClient;
use tonic::transport::{Channel, Endpoint};

use crate::exit::Failure;

/// Where a router listens unless told otherwise.
pub(crate) const DEFAULT_ROUTER: &str = "127.0.0.1:7070";

/// Connects, within five seconds.
pub(crate) async fn connect(address: Option<&str>) -> Result<Channel, Failure> {
    let address = address.unwrap_or(DEFAULT_ROUTER);
    let uri = if address.contains("://") {
        address.to_owned()
    } else {
        format!("http://{address}")
    };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(|error| {
            Failure::usage(format!("--connect {address}: {error}; expected HOST:PORT"))
        })?
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(10));
    let dialer = Dialer::plain().with_timeout(Duration::from_secs(5));
    dialer.connect(&endpoint).await.map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        Failure::unreachable(format!(
            "no router answers at {address} ({cause}); start one with `baton up --model PATH` or name another with --connect"
        ))
    })
}

/// For generating.
pub(crate) async fn inference(
    address: Option<&str>,
) -> Result<InferenceServiceClient<Channel>, Failure> {
    Ok(InferenceServiceClient::new(connect(address).await?))
}

/// For operating.
pub(crate) async fn admin(address: Option<&str>) -> Result<AdminServiceClient<Channel>, Failure> {
    Ok(AdminServiceClient::new(connect(address).await?))
}
