//! Accepting connections under limits: how many there are, and how long one may take to say that it
//! speaks HTTP/2. What stays silent afterwards falls to keep-alive.
//!
//! It must not know services.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::transport::server::Connected;

use crate::held::Held;
use crate::preface::{Speaker, Unheard, hear};
use crate::replay::Replay;
use crate::stream::{Accept, Accepted};
use crate::tls::{Shown, Strangers, Tls};

/// Time for a connection's first words to arrive, TLS and HTTP/2.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(20);

/// Most connections that have not spoken yet; a newcomer takes the place of the oldest.
const MAX_SILENT: usize = 256;
/// Least time between two warnings of one kind.
const WARN_INTERVAL: Duration = Duration::from_secs(1);

/// A connection that counts against the limit until it is dropped.
pub type Connection = Held<Replay, Seat>;

/// Its place, and who has it.
#[derive(Debug)]
pub struct Seat {
    peer: PeerInfo,
    _place: OwnedSemaphorePermit,
}

/// Who is at the other end of a connection; an extension of every request on it.
#[derive(Debug, Clone, Default)]
pub struct PeerInfo {
    /// Its address, if it has one.
    pub address: Option<SocketAddr>,
    /// Whose certificate it has shown.
    pub shown: Shown,
}

impl PeerInfo {
    /// Who sent a request.
    pub fn of<T>(request: &Request<T>) -> Option<&Self> {
        request.extensions().get()
    }
}

/// Places of connections, of one door or shared by several.
#[derive(Debug, Clone)]
pub struct Places {
    limit: usize,
    free: Arc<Semaphore>,
    /// Places at this door for those that have not spoken yet.
    silent: usize,
}

impl Places {
    /// So many, at one door.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            free: Arc::new(Semaphore::new(limit)),
            silent: limit.clamp(1, MAX_SILENT),
        }
    }

    /// The same places for each of so many doors; those for silent ones are divided.
    #[must_use]
    pub fn shared_by(mut self, doors: usize) -> Self {
        self.silent = self.silent.div_ceil(doors.max(1));
        self
    }
}

/// Accepts connections and yields those that speak HTTP/2, at most `limit` of them at a time; one
/// over it is closed at once. Those that have not spoken yet take none of these places: there are at
/// most `limit` and [`MAX_SILENT`] of them. Ends when the receiving stream is dropped.
pub fn incoming(listener: impl Accept, limit: usize) -> ReceiverStream<io::Result<Connection>> {
    incoming_under(listener, Places::new(limit), None)
}

/// The same, under TLS if certificates are given. Those who do not speak it are told so.
pub fn incoming_under(
    listener: impl Accept,
    places: Places,
    tls: Option<(Tls, Strangers)>,
) -> ReceiverStream<io::Result<Connection>> {
    let (accepted, receiver) = mpsc::channel(16);
    tokio::spawn(accept(listener, places, tls, accepted));
    ReceiverStream::new(receiver)
}

async fn accept(
    mut listener: impl Accept,
    places: Places,
    tls: Option<(Tls, Strangers)>,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    let Places {
        limit,
        free,
        silent,
    } = places;
    let mut silent = Silent::new(silent, tls);
    let mut refused = Warnings::default();
    loop {
        tokio::select! {
            () = accepted.closed() => return,
            speaker = silent.speaks() => {
                let Ok(place) = Arc::clone(&free).try_acquire_owned() else {
                    if let Some(count) = refused.count() {
                        tracing::warn!(limit, count, "connections refused: too many are open");
                    }
                    continue;
                };
                let Speaker { stream, peer } = speaker;
                let connection = Held::new(stream, Seat { peer, _place: place });
                // The server has ended if nobody receives: the connection is closed.
                let _ = accepted.send(Ok(connection)).await;
            }
            result = listener.next_connection() => match result {
                Ok(accepted) => silent.add(accepted),
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
    tls: Option<(Tls, Strangers)>,
    waiting: JoinSet<Result<Speaker, Unheard>>,
    /// Oldest first; some may have ended.
    order: VecDeque<AbortHandle>,
    dropped: Warnings,
    refused: Warnings,
}

impl Silent {
    fn new(limit: usize, tls: Option<(Tls, Strangers)>) -> Self {
        Self {
            limit,
            tls,
            waiting: JoinSet::new(),
            order: VecDeque::new(),
            dropped: Warnings::default(),
            refused: Warnings::default(),
        }
    }

    /// Adds one, if need be in the place of the oldest.
    fn add(&mut self, accepted: Accepted) {
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
        let tls = self.tls.clone();
        let handle = self.waiting.spawn(async move {
            tokio::time::timeout(PREFACE_TIMEOUT, hear(accepted, tls))
                .await
                .unwrap_or(Err(Unheard::Quiet))
        });
        self.order.push_back(handle);
    }

    /// The next one that speaks HTTP/2. Cancel-safe.
    async fn speaks(&mut self) -> Speaker {
        loop {
            match self.waiting.join_next().await {
                Some(Ok(Ok(speaker))) => return speaker,
                Some(Ok(Err(Unheard::Refused(why)))) => {
                    if let Some(count) = self.refused.count() {
                        tracing::warn!(count, "TLS connections refused; the last one: {why}");
                    }
                }
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

impl Connected for Connection {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.held().peer.clone()
    }
}
