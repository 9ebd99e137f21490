//! A connection to one endpoint of etcd, and calls with a bound.
//!
//! One endpoint per connection, the next one for the next: a call is never left to a balancer that may
//! choose an endpoint which is silent. Who connects is given, as for every other connection of a process.
//! It must not know keys.

use std::time::Duration;

use etcd_client::{Channel, Client, Error};

use super::options::EtcdOptions;
use crate::ClusterError;
use crate::dialer::Dialer;

/// Time for etcd to answer a call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects to the endpoint whose turn it is and logs in.
pub(super) async fn connect(
    options: &EtcdOptions,
    dialer: &Dialer,
    attempt: usize,
) -> Result<Client, ClusterError> {
    let endpoint = options.connection(attempt).await?;
    let login = options.login().await?;
    let dialer = dialer.without_tls();
    let connecting = async {
        let channel = dialer.connect(&endpoint).await?;
        Client::from_channel(Channel::Tonic(channel), Some(login)).await
    };
    answered("a connection", connecting).await
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
            // Its own words are "transport error"; those of its cause say what.
            Error::TransportError(error) => causes(&error),
            other => other.to_string(),
        })
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    let words: Vec<_> = all.map(ToString::to_string).collect();
    words.join(": ")
}
