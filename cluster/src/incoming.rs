//! Accepting connections under limits: how many there are, and how long one may take to say that it
//! speaks HTTP/2. What stays silent afterwards falls to keep-alive.
//!
//! It must not know services.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// First bytes of every HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time for them to arrive.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between looks at a connection that has sent a part of them, and after a failed accept.
const PAUSE: Duration = Duration::from_millis(20);

/// Most connections that have not spoken yet; a newcomer takes the place of the oldest.
const MAX_SILENT: usize = 256;
/// Least time between two warnings of one kind.
const WARN_INTERVAL: Duration = Duration::from_secs(1);

/// A connection that counts against the limit until it is dropped.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

/// Accepts connections and yields those that speak HTTP/2, at most `limit` of them at a time; one
/// over it is closed at once. Those that have not spoken yet take none of these places: there are at
/// most `limit` and [`MAX_SILENT`] of them. Ends when the receiving stream is dropped.
pub fn incoming(listener: TcpListener, limit: usize) -> ReceiverStream<io::Result<Connection>> {
    let (accepted, receiver) = mpsc::channel(16);
    tokio::spawn(accept(listener, limit, accepted));
    ReceiverStream::new(receiver)
}

async fn accept(
    listener: TcpListener,
    limit: usize,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    let places = Arc::new(Semaphore::new(limit));
    let mut silent = Silent::new(limit.clamp(1, MAX_SILENT));
    let mut refused = Warnings::default();
    loop {
        tokio::select! {
            () = accepted.closed() => return,
            stream = silent.speaks() => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    if let Some(count) = refused.count() {
                        tracing::warn!(limit, count, "connections refused: too many are open");
                    }
                    continue;
                };
                let connection = Connection { stream, _place: place };
                // The server has ended if nobody receives: the connection is closed.
                let _ = accepted.send(Ok(connection)).await;
            }
            result = listener.accept() => match result {
                Ok((stream, _)) => silent.add(stream),
                // Out of file descriptors, or the peer is gone already: the listener lives on.
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
    }
}

/// Connections that have not spoken yet.
struct Silent {
    limit: usize,
    waiting: JoinSet<Option<TcpStream>>,
    /// Oldest first; some may have ended.
    order: VecDeque<AbortHandle>,
    dropped: Warnings,
}

impl Silent {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            waiting: JoinSet::new(),
            order: VecDeque::new(),
            dropped: Warnings::default(),
        }
    }

    /// Adds one, if need be in the place of the oldest.
    fn add(&mut self, stream: TcpStream) {
        self.order.retain(|handle| !handle.is_finished());
        if self.order.len() >= self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            oldest.abort();
            if let Some(count) = self.dropped.count() {
                let limit = self.limit;
                tracing::warn!(limit, count, "silent connections closed to make room");
            }
        }
        let handle = self.waiting.spawn(async move {
            let spoke = tokio::time::timeout(PREFACE_TIMEOUT, speaks_http2(&stream)).await;
            (spoke == Ok(true) && stream.set_nodelay(true).is_ok()).then_some(stream)
        });
        self.order.push_back(handle);
    }

    /// The next one that speaks HTTP/2. Cancel-safe.
    async fn speaks(&mut self) -> TcpStream {
        loop {
            match self.waiting.join_next().await {
                Some(Ok(Some(stream))) => return stream,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// Counts what happens too often to be told each time.
#[derive(Debug, Default)]
struct Warnings {
    untold: u64,
    told_at: Option<Instant>,
}

impl Warnings {
    /// Counts one; how many to tell of, if it is time to.
    fn count(&mut self) -> Option<u64> {
        self.untold += 1;
        let now = Instant::now();
        if self
            .told_at
            .is_some_and(|at| now.duration_since(at) < WARN_INTERVAL)
        {
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
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
