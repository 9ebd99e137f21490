//! How connections of the tcp transport come about: over the kernel's sockets, or over whatever a process
//! puts in their place (TLS, a simulated network). It must not know frames.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use crate::socket::Socket;

/// A connection, or a part of one, on its way.
pub type Opening<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// Makes and takes connections of the tcp transport.
pub trait Network: fmt::Debug + Send + Sync {
    /// Connects to `address`, to which the grant's `host` has been resolved. The caller limits the time.
    fn connect(&self, host: String, address: SocketAddr) -> Opening<'static, DataStream>;

    /// Listens at an address (port 0: any).
    fn listen(&self, address: SocketAddr) -> Opening<'static, Box<dyn Listen>>;
}

/// A bound listener.
pub trait Listen: Send {
    /// Where it listens.
    ///
    /// # Errors
    /// The system does not tell.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Accepts the next connection. What it still takes to open it (a handshake of its own) is left to the
    /// future that comes back, so that a peer which says nothing keeps nobody else waiting.
    fn accept(&mut self) -> Opening<'_, Opening<'static, DataStream>>;
}

/// A connected byte stream.
#[derive(Debug)]
pub struct DataStream(pub(crate) Socket);

impl DataStream {
    /// Any stream. Its reads are not scattered into pages, so that kernel sockets are better given as
    /// what they are.
    pub fn boxed(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self(Socket::boxed(Box::new(stream)))
    }
}

impl From<TcpStream> for DataStream {
    fn from(stream: TcpStream) -> Self {
        Self(Socket::Tcp(stream))
    }
}

/// The kernel's TCP, unencrypted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Network for Tcp {
    fn connect(&self, _: String, address: SocketAddr) -> Opening<'static, DataStream> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(stream.into())
        })
    }

    fn listen(&self, address: SocketAddr) -> Opening<'static, Box<dyn Listen>> {
        Box::pin(async move {
            let listener: Box<dyn Listen> = Box::new(TcpListener::bind(address).await?);
            Ok(listener)
        })
    }
}

impl Listen for TcpListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }

    fn accept(&mut self) -> Opening<'_, Opening<'static, DataStream>> {
        Box::pin(async {
            let (stream, _) = Self::accept(self).await?;
            stream.set_nodelay(true)?;
            let open: Opening<'static, DataStream> = Box::pin(async { Ok(stream.into()) });
            Ok(open)
        })
    }
}
