//! The network as the product takes it: gRPC connections and the data plane. It must not know who speaks.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use baton_cluster::{Accept, Accepted, Accepting, BoxStream, Dialer};
use baton_kv_transfer::{DataStream, Listen, Network as DataPlane, Opening};

use super::{Host, Listener};

impl Host {
    /// Opens this process's gRPC connections.
    pub fn dialer(&self) -> Dialer {
        let host = self.clone();
        Dialer::with_connector(move |address| {
            let host = host.clone();
            async move {
                let address: SocketAddr = address.parse().map_err(io::Error::other)?;
                let stream: BoxStream = Box::new(host.connect(address).await?);
                Ok(stream)
            }
        })
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Host").field(&self.id).finish()
    }
}

impl DataPlane for Host {
    fn connect(&self, _: String, address: SocketAddr) -> Opening<'static, DataStream> {
        let host = self.clone();
        Box::pin(async move { Ok(DataStream::boxed(Self::connect(&host, address).await?)) })
    }

    fn listen(&self, address: SocketAddr) -> Opening<'static, Box<dyn Listen>> {
        let listener = Self::listen(self, address);
        Box::pin(async move {
            let listener: Box<dyn Listen> = Box::new(listener?);
            Ok(listener)
        })
    }
}

impl Listen for Listener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn accept(&mut self) -> Opening<'_, Opening<'static, DataStream>> {
        Box::pin(async {
            let stream = Self::accept(self).await;
            let open: Opening<'static, DataStream> =
                Box::pin(async { Ok(DataStream::boxed(stream)) });
            Ok(open)
        })
    }
}

impl Accept for Listener {
    fn next_connection(&mut self) -> Accepting<'_> {
        Box::pin(async {
            let stream = Self::accept(self).await;
            let address = Some(stream.peer());
            Ok(Accepted {
                stream: Box::new(stream),
                address,
            })
        })
    }
}
