//! The port where a process shows its metrics.

use std::net::SocketAddr;
use std::sync::Arc;

use baton_telemetry::metrics::{Metrics, serve};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::args::{MetricsArgs, OFF};
use crate::exit::Failure;

use super::socket_address;

/// A port that is open but not served yet.
pub(super) struct MetricsPort(Option<(TcpListener, SocketAddr)>);

impl MetricsPort {
    /// Opens it, if there shall be one. It carries figures and names, nothing of requests, so it may be
    /// open beyond this machine without TLS.
    pub(super) async fn bind(args: &MetricsArgs) -> Result<Self, Failure> {
        let address = match args.metrics_listen.as_deref() {
            None | Some(OFF) => return Ok(Self(None)),
            Some(address) => socket_address("--metrics-listen", address)?,
        };
        let wrong = |error: std::io::Error| {
            Failure::failed(format!(
                "--metrics-listen: cannot listen on {address}: {error}"
            ))
        };
        let listener = match TcpListener::bind(address).await {
            Err(error) if args.metrics_any_port == Some(true) => {
                tracing::warn!("metrics: {address} cannot be had ({error}), another port is taken");
                TcpListener::bind(SocketAddr::new(address.ip(), 0)).await
            }
            bound => bound,
        };
        let listener = listener.map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        Ok(Self(Some((listener, address))))
    }

    /// What the ready line says of it.
    pub(super) fn words(&self) -> String {
        let port = self.0.as_ref();
        port.map_or_else(String::new, |(_, address)| format!(" metrics={address}"))
    }

    /// Shows these metrics there until what it gives is dropped.
    pub(super) fn serve(self, metrics: Arc<Metrics>) -> JoinSet<()> {
        let mut serving = JoinSet::new();
        if let Some((listener, _)) = self.0 {
            serving.spawn(serve(listener, metrics));
        }
        serving
    }
}
