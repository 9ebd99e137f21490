//! How a process opens its gRPC connections: over TCP, or over whatever a test puts in its place.
//!
//! It is given to those who connect, never found by them. It must not know services.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::Service;

use crate::ClusterError;
use crate::http2;
use crate::link::Links;
use crate::stream::BoxStream;
use crate::tls::{Plane, Tls};

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

type Opening = Pin<Box<dyn Future<Output = io::Result<BoxStream>> + Send>>;

/// Opens connections to `host:port`.
#[derive(Clone)]
pub struct Dialer {
    connect: Arc<dyn Fn(String) -> Opening + Send + Sync>,
    timeout: Duration,
    tls: Option<Tls>,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").finish_non_exhaustive()
    }
}

impl Dialer {
    /// Over TCP, unencrypted.
    pub fn plain() -> Self {
        Self::with_connector(|address| async move {
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            let stream: BoxStream = Box::new(stream);
            Ok(stream)
        })
    }

    /// Over whatever `connect` gives for a `host:port`: memory, a simulated network.
    pub fn with_connector<F, Connecting>(connect: F) -> Self
    where
        F: Fn(String) -> Connecting + Send + Sync + 'static,
        Connecting: Future<Output = io::Result<BoxStream>> + Send + 'static,
    {
        Self {
            connect: Arc::new(move |address| Box::pin(connect(address))),
            timeout: CONNECT_TIMEOUT,
            tls: None,
        }
    }

    /// Under TLS, if there is a CA to verify peers by.
    #[must_use]
    pub fn with_tls(self, tls: Option<&Tls>) -> Self {
        let tls = tls.filter(|tls| tls.knows_peers()).cloned();
        Self { tls, ..self }
    }

    /// With another time to connect (the default is two seconds).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// A channel to `host:port` with the shared settings. It connects when first used, and again whenever
    /// its connection broke.
    ///
    /// # Errors
    /// The address is not one.
    pub fn channel(&self, address: &str) -> Result<Channel, ClusterError> {
        let endpoint = self.over(http2::endpoint(address)?);
        Ok(endpoint.connect_with_connector_lazy(Connector(self.clone())))
    }

    /// A channel with an endpoint's own settings that is connected now.
    ///
    /// # Errors
    /// Nobody answers there.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, tonic::transport::Error> {
        let endpoint = self.over(endpoint.clone());
        endpoint
            .connect_with_connector(Connector(self.clone()))
            .await
    }

    /// Without TLS of its own: an endpoint may have its own.
    #[must_use]
    pub(crate) fn without_tls(&self) -> Self {
        Self {
            tls: None,
            ..self.clone()
        }
    }

    /// Requests name the scheme that they are made under; the connector, which knows TLS, is not asked
    /// for it.
    fn over(&self, endpoint: Endpoint) -> Endpoint {
        let authority = endpoint.uri().authority().cloned();
        let (Some(_), Some(authority)) = (&self.tls, authority) else {
            return endpoint;
        };
        let origin = Uri::builder()
            .scheme("https")
            .authority(authority)
            .path_and_query("/");
        match origin.build() {
            Ok(origin) => endpoint.origin(origin),
            Err(_) => endpoint,
        }
    }

    /// Links to `host:port`, for calls whose messages go both ways: one for each runtime that calls. Each connects
    /// when first used, and again whenever its connection broke.
    ///
    /// # Errors
    /// The address is not one.
    pub fn links(&self, address: &str) -> Result<Links, ClusterError> {
        Links::new(self.clone(), address)
    }

    /// Whether its connections are encrypted.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Opens one connection.
    pub(crate) async fn dial(&self, address: &str) -> io::Result<BoxStream> {
        let connecting = async {
            let stream = (self.connect)(address.to_owned()).await?;
            let Some(tls) = &self.tls else {
                return Ok(stream);
            };
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            tls.connect(Plane::Calls, host, stream).await
        };
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no connection within {:?}", self.timeout),
            )),
        }
    }
}

/// A dialer as tonic asks for it.
struct Connector(Dialer);

impl Service<Uri> for Connector {
    type Response = TokioIo<BoxStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.0.clone();
        Box::pin(async move {
            let address = uri.authority().map_or("", |authority| authority.as_str());
            dialer.dial(address).await.map(TokioIo::new)
        })
    }
}
