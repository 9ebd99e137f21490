//! The data plane's tcp transport under TLS: both sides show a certificate. It must not know pages.

use std::io;
use std::net::SocketAddr;

use baton_cluster::{Plane, Strangers, Tls};
use baton_kv_transfer::{DataStream, Listen, Network, Opening};
use tokio::net::{TcpListener, TcpStream};

/// TLS over the kernel's TCP.
#[derive(Debug, Clone)]
pub(crate) struct TlsNetwork(Tls);

impl TlsNetwork {
    /// With the certificates of this process.
    pub(crate) fn new(tls: Tls) -> Self {
        Self(tls)
    }
}

impl Network for TlsNetwork {
    fn connect(&self, host: String, address: SocketAddr) -> Opening<'static, DataStream> {
        let tls = self.0.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let stream = tls.connect(Plane::Pages, &host, stream).await?;
            Ok(DataStream::boxed(stream))
        })
    }

    fn listen(&self, address: SocketAddr) -> Opening<'static, Box<dyn Listen>> {
        let tls = self.0.clone();
        Box::pin(async move {
            let tcp = TcpListener::bind(address).await?;
            let listener: Box<dyn Listen> = Box::new(TlsListener { tcp, tls });
            Ok(listener)
        })
    }
}

struct TlsListener {
    tcp: TcpListener,
    tls: Tls,
}

impl Listen for TlsListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    fn accept(&mut self) -> Opening<'_, Opening<'static, DataStream>> {
        Box::pin(async {
            let (stream, address) = self.tcp.accept().await?;
            stream.set_nodelay(true)?;
            let tls = self.tls.clone();
            let open: Opening<'static, DataStream> = Box::pin(async move {
                let opened = tls.accept(Plane::Pages, Strangers::Refused, stream).await;
                let (stream, _) = opened
                    .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
                Ok(DataStream::boxed(stream))
            });
            Ok(open)
        })
    }
}
