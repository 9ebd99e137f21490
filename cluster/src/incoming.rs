//! Accepting connections under limits: how many there are, and how long one may take to say that it
//! speaks HTTP/2. What stays silent afterwards falls to keep-alive.
//!
//! It must not know services.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// First bytes of every HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time for them to arrive.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between looks at a connection that has sent a part of them, and after a failed accept.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection that counts against the limit until it is dropped.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

/// Accepts at most `limit` connections at a time; one over it is closed at once. Ends when the
/// receiving stream is dropped.
pub fn incoming(listener: TcpListener, limit: usize) -> ReceiverStream<io::Result<Connection>> {
    let (accepted, receiver) = mpsc::channel(16);
    let places = Arc::new(Semaphore::new(limit));
    tokio::spawn(async move {
        loop {
            let stream = tokio::select! {
                () = accepted.closed() => return,
                result = listener.accept() => match result {
                    Ok((stream, _)) => stream,
                    // Out of file descriptors, or the peer is gone already: the listener lives on.
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                },
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                tracing::warn!(limit, "connection refused: too many are open");
                continue;
            };
            let accepted = accepted.clone();
            tokio::spawn(async move {
                if let Ok(true) = tokio::time::timeout(PREFACE_TIMEOUT, speaks_http2(&stream)).await
                    && stream.set_nodelay(true).is_ok()
                {
                    // The server has ended if nobody receives: the connection is closed.
                    let _ = accepted
                        .send(Ok(Connection {
                            stream,
                            _place: place,
                        }))
                        .await;
                }
            });
        }
    });
    ReceiverStream::new(receiver)
}

async fn speaks_http2(stream: &TcpStream) -> bool {
    let mut seen = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut seen).await {
            Ok(count) if count > 0 && PREFACE.starts_with(&seen[..count]) => {
                if count == PREFACE.len() {
                    return true;
                }
            }
            _ => return false,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
