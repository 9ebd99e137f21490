//! How a process opens its gRPC connections: over TCP, or over whatever a test puts in its place.
//!
//! It is given to those who connect, never found by them. It must not know services.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::ClusterError;
use crate::http2;
use crate::stream::BoxStream;

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

type Opening = Pin<Box<dyn Future<Output = io::Result<BoxStream>> + Send>>;

/// Opens connections to `host:port`.
#[derive(Clone)]
pub struct Dialer {
    connect: Arc<dyn Fn(String) -> Opening + Send + Sync>,
    timeout: Duration,
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
        }
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
        let endpoint = http2::endpoint(address)?;
        Ok(endpoint.connect_with_connector_lazy(self.connector()))
    }

    /// A channel with an endpoint's own settings that is connected now.
    ///
    /// # Errors
    /// Nobody answers there.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, tonic::transport::Error> {
        endpoint.connect_with_connector(self.connector()).await
    }

    fn connector(
        &self,
    ) -> impl tower::Service<
        Uri,
        Response = TokioIo<BoxStream>,
        Error = io::Error,
        Future = impl Future<Output = io::Result<TokioIo<BoxStream>>> + Send,
    > + Send
    + use<> {
        let dialer = self.clone();
        tower::service_fn(move |uri: Uri| {
            let dialer = dialer.clone();
            async move {
                let address = uri.authority().map_or("", |authority| authority.as_str());
                dialer.dial(address).await.map(TokioIo::new)
            }
        })
    }

    async fn dial(&self, address: &str) -> io::Result<BoxStream> {
        let connecting = (self.connect)(address.to_owned());
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no connection within {:?}", self.timeout),
            )),
        }
    }
}
