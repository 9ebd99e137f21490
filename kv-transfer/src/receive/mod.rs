//! The receiving side of a process: listeners, open attempts, grants. It must not know the pool: pages
//! are reserved before an attempt opens and given back by whoever reserved them.

pub(crate) mod attempt;
mod bind;
mod connection;
pub(crate) mod ending;
mod handshakes;
mod landing;
mod listener;
mod open_attempt;
mod pieces;
pub(crate) mod table;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton_kv_cache::{KvLayout, KvMemory};
use baton_proto::domain::{Grant, PageSlot, TransferEndpoint, Transport};
use baton_proto::ids::Attempt;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use bind::{bind_tcp, bind_unix};
use ending::Ending;
use listener::Listener;
use open_attempt::{OpenAttempt, Status};
use table::Table;

use crate::counters::Counters;
use crate::error::TransferError;
use crate::identity::{Identity, TransportChoice};
use crate::network::Network;
use crate::page_access::PageMemory;
use crate::shm::SharedMemory;

/// Longer leases are cut: local instants must not overflow, and a wait this long is none.
const LONGEST_LEASE: Duration = Duration::from_hours(24);

/// Settings of the receiving side.
#[derive(Debug, Clone)]
pub struct ReceiverOptions {
    /// Offered transports.
    pub transports: TransportChoice,
    /// TCP listen address (port 0: any).
    pub listen: SocketAddr,
    /// Host that peers are told to connect to (default: the listen address).
    pub advertise: Option<String>,
    /// Folder for the Unix socket of shm.
    pub socket_dir: PathBuf,
    /// Time without progress after which an attempt fails.
    pub lease: Duration,
    /// Bytes in flight per sender before credit must return.
    pub credit_bytes: usize,
    /// Most pages in quarantine per peer before it falls back to tcp.
    pub quarantine_cap_pages: u32,
    /// Takes the connections of the tcp transport.
    pub network: Arc<dyn Network>,
}

/// The receiving side of one process: listeners and open attempts. Dropping it closes all.
#[derive(Debug)]
pub struct Receiver {
    table: Arc<Table>,
    endpoints: Vec<TransferEndpoint>,
    lease: Duration,
    runtime: Handle,
    listeners: Vec<AbortHandle>,
    socket_path: Option<PathBuf>,
}

/// What is reserved for one attempt.
#[derive(Debug, Clone)]
pub struct Reservation {
    /// Attempt of the request's hand-off.
    pub attempt: Attempt,
    /// Slots for the prompt's pages after the reused prefix, in order.
    pub slots: Vec<PageSlot>,
    /// Leading pages already held.
    pub reused_pages: u32,
}

impl Receiver {
    /// Binds the listeners. `shared` must be given for shm to be offered, and then be the region behind
    /// `memory`. Where the choice is `Auto` and shm's socket cannot be made, only tcp is offered. Must be called within a tokio runtime, which also runs what [`Self::open`] starts.
    ///
    /// # Errors
    /// An address or socket path that cannot be bound, or memory that does not fit the layout.
    pub async fn bind(
        identity: Identity,
        layout: KvLayout,
        memory: Arc<dyn KvMemory>,
        shared: Option<Arc<SharedMemory>>,
        options: ReceiverOptions,
    ) -> Result<Self, TransferError> {
        let memory = PageMemory::new(memory, layout)?;
        let shared = shared.filter(|_| options.transports.allows_shm());
        if options.transports == TransportChoice::Shm && shared.is_none() {
            let detail = "shm is asked for, but the pool is not shared memory".to_owned();
            return Err(TransferError::Memory { detail });
        }
        let host_id = identity.host_id.clone();
        let table = Arc::new(Table::new(
            identity,
            memory,
            options.lease.min(LONGEST_LEASE),
            options.credit_bytes,
            options.quarantine_cap_pages,
        ));
        let mut receiver = Self {
            table,
            endpoints: Vec::new(),
            lease: options.lease.min(LONGEST_LEASE),
            runtime: Handle::current(),
            listeners: Vec::new(),
            socket_path: None,
        };
        if let Some(shared) = shared {
            match bind_unix(&options.socket_dir) {
                Ok((listener, path)) => {
                    let address = path.to_string_lossy().into_owned();
                    receiver.socket_path = Some(path);
                    let listener = Listener::Unix(listener, shared);
                    receiver.listen(listener, Transport::Shm, address, &host_id);
                }
                Err(error) if options.transports.allows_tcp() => {
                    tracing::warn!(%error, "shm is not offered, only tcp");
                }
                Err(error) => return Err(error),
            }
        }
        if options.transports.allows_tcp() {
            let (listener, address) = bind_tcp(&options).await?;
            receiver.listen(Listener::Tcp(listener), Transport::Tcp, address, &host_id);
        }
        Ok(receiver)
    }

    fn listen(&mut self, listener: Listener, transport: Transport, address: String, host_id: &str) {
        let task = self.runtime.spawn(listener.run(Arc::clone(&self.table)));
        self.listeners.push(task.abort_handle());
        self.endpoints.push(TransferEndpoint {
            transport,
            address,
            host_id: host_id.to_owned(),
        });
    }

    /// Opens an attempt: random id and secret, endpoints, lease. The grant goes to the router; the
    /// [`Incoming`] stays with the decode leg. The lease runs from now: grants are made when prefill
    /// starts, and every frame of the sender renews it.
    ///
    /// Past a bound on open attempts the [`Incoming`] has failed already.
    pub fn open(&self, reservation: Reservation) -> (Grant, Incoming) {
        let now = Instant::now().into_std();
        let (attempt, transfer_id, secret) = self.table.open(now, &reservation);
        self.runtime.spawn(Arc::clone(&attempt).watch_lease());
        let grant = Grant {
            transfer_id,
            attempt: reservation.attempt,
            incarnation: self.table.identity.incarnation,
            slots: reservation.slots,
            fingerprint: self.table.identity.fingerprint.clone(),
            reused_pages: reservation.reused_pages,
            endpoints: self.endpoints.clone(),
            secret,
            lease: self.lease,
            span: None,
        };
        (grant, Incoming { attempt })
    }

    /// Where peers connect, best first.
    pub fn endpoints(&self) -> &[TransferEndpoint] {
        &self.endpoints
    }

    #[cfg(test)]
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Counters of this side.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.table.counters)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        for listener in &self.listeners {
            listener.abort();
        }
        self.table.shut();
        if let Some(path) = &self.socket_path {
            // It may be gone already; nobody can connect to it either way.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// How an attempt ended at the receiver (who alone closes it).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Commit verified: every page is complete, count and digest agree. `payload` is the encoded
    /// `CommitPayload`.
    Committed {
        /// Opaque, bounded bytes for the decode leg.
        payload: Vec<u8>,
    },
    /// The sender revoked (first token ended every choice, or cancel).
    Revoked,
    /// Connection lost, lease expired, digest mismatch, protocol violation …
    Failed(TransferError),
}

/// One open attempt at the receiver. Dropping it closes the attempt.
///
/// After a drop, as after [`Incoming::outcome`], pages of an attempt that failed over shm may still be
/// written by the peer until it is fenced: await [`Incoming::fenced`] before they go back to the pool.
#[derive(Debug)]
pub struct Incoming {
    attempt: Arc<OpenAttempt>,
}

impl Incoming {
    /// Waits for the end of the attempt. Cancel-safe; may be asked again.
    pub async fn outcome(&mut self) -> Outcome {
        self.wait(|status| status.closed).await;
        match self.attempt.ending() {
            Some(Ending::Committed(payload)) => Outcome::Committed { payload },
            Some(Ending::Revoked) => Outcome::Revoked,
            Some(Ending::Failed(error)) => Outcome::Failed(error),
            None => Outcome::Failed(TransferError::Shutdown),
        }
    }

    /// Whether no peer can write these pages any more: false while the attempt is open, and while it is
    /// closed but its shm peer has neither answered nor gone.
    pub fn is_fenced(&self) -> bool {
        self.attempt.status().fenced
    }

    /// Closes the attempt (if still open) and resolves once no peer can write these pages any more:
    /// at once for tcp; for shm after `RevokeAck` or proof that the peer is gone. Until then the pool keeps
    /// them quarantined. Bounded by lease + grace only if the peer is proven gone.
    pub async fn fenced(self) {
        self.attempt
            .with(|state| state.fail(TransferError::Revoked));
        self.wait(|status| status.fenced).await;
    }

    async fn wait(&self, until: impl FnMut(&Status) -> bool) {
        // The sender half lives in the attempt, so this cannot end early.
        let _ = self.attempt.watch().wait_for(until).await;
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.attempt
            .with(|state| state.fail(TransferError::Revoked));
    }
}
