//! A connection to one endpoint of etcd, and calls with a bound.
//!
//! One endpoint per connection, the next one for the next: a call is never left to a balancer that may
//! choose an endpoint which is silent. It must not know keys.

use std::time::Duration;

use etcd_client::{Client, Error};

use super::options::EtcdOptions;
use crate::ClusterError;

/// Time for etcd to answer a call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects to the endpoint whose turn it is and logs in.
pub(super) async fn connect(options: &EtcdOptions, attempt: usize) -> Result<Client, ClusterError> {
    let endpoint = options.endpoint(attempt);
    let settings = options.connect_options().await?;
    answered("a connection", Client::connect([endpoint], Some(settings))).await
}

/// The answer of a call, within [`CALL_TIMEOUT`]. On the heap: calls of the client are large.
pub(super) fn answered<T>(
    what: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> impl Future<Output = Result<T, ClusterError>> {
    let call = Box::pin(call);
    async move {
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ClusterError::EtcdSilent { what }),
        }
    }
}

impl From<Error> for ClusterError {
    fn from(error: Error) -> Self {
        Self::Etcd(match error {
            // Without the metadata.
            Error::GRpcStatus(status) => format!("{}: {}", status.code(), status.message()),
            other => other.to_string(),
        })
    }
}
