//! Byte streams between processes, and where they come from: TCP, or whatever a test puts in its place.
//!
//! It must not know what is said on them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// A connection to another process.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// Any of them.
pub type BoxStream = Box<dyn ByteStream>;

/// A connection that somebody has opened to us.
pub struct Accepted {
    /// The connection.
    pub stream: BoxStream,
    /// From where, if that is known.
    pub address: Option<SocketAddr>,
}

/// A source of connections.
pub trait Accept: Send + 'static {
    /// The next connection. Cancel-safe.
    fn next_connection(&mut self) -> Accepting<'_>;
}

/// A connection on its way in.
pub type Accepting<'a> = Pin<Box<dyn Future<Output = io::Result<Accepted>> + Send + 'a>>;

impl Accept for Box<dyn Accept> {
    fn next_connection(&mut self) -> Accepting<'_> {
        (**self).next_connection()
    }
}

impl Accept for TcpListener {
    fn next_connection(&mut self) -> Accepting<'_> {
        Box::pin(async {
            let (stream, address) = self.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Accepted {
                stream: Box::new(stream),
                address: Some(address),
            })
        })
    }
}
