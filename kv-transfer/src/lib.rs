//! Grants, sender and receiver state machines, transports.
//!
//! Knows pages as bytes under a layout. It must not know models, schedulers or the router.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton_kv_cache::{KvLayout, KvMemory, PageIndex};
use baton_proto::domain::{Fingerprint, Grant, PageSlot, Transport};
use baton_proto::ids::{Attempt, Incarnation, TransferId};

/// Who this process is, as told in every handshake.
#[derive(Debug, Clone)]
pub struct Identity {
    /// This process start.
    pub incarnation: Incarnation,
    /// Compatibility identity.
    pub fingerprint: Fingerprint,
    /// Boot id of the host.
    pub host_id: String,
}

/// Which transports a side offers or may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportChoice {
    /// shm where host and user are the same, else tcp.
    Auto,
    /// Only shm.
    Shm,
    /// Only tcp.
    Tcp,
}

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
}

/// The receiver's memory: a memfd that senders on this host may map.
///
/// # Errors
/// The system refuses the memfd or the mapping.
pub fn shared_memory(bytes: usize) -> Result<Arc<SharedMemory>, TransferError> {
    let _ = bytes;
    unimplemented!()
}

/// A memfd mapping that implements [`KvMemory`].
#[derive(Debug)]
pub struct SharedMemory {}

/// The receiving side of one process: listeners and open attempts. Dropping it closes all.
pub struct Receiver {}

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
    /// Binds the listeners. `shared` must be given for shm to be offered.
    ///
    /// # Errors
    /// An address or socket path that cannot be bound.
    pub async fn bind(
        identity: Identity,
        layout: KvLayout,
        memory: Arc<dyn KvMemory>,
        shared: Option<Arc<SharedMemory>>,
        options: ReceiverOptions,
    ) -> Result<Self, TransferError> {
        let _ = (identity, layout, memory, shared, options);
        unimplemented!()
    }

    /// Opens an attempt: random id and secret, endpoints, lease. The grant goes to the router; the
    /// [`Incoming`] stays with the decode leg.
    pub fn open(&self, reservation: Reservation) -> (Grant, Incoming) {
        let _ = reservation;
        unimplemented!()
    }
}

/// How an attempt ended at the receiver (who alone closes it).
#[derive(Debug)]
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
pub struct Incoming {}

impl Incoming {
    /// Waits for the end of the attempt.
    pub async fn outcome(&mut self) -> Outcome {
        unimplemented!()
    }
    /// Closes the attempt (if still open) and resolves once no peer can write these pages any more:
    /// at once for tcp; for shm after RevokeAck or proof that the peer is gone. Until then the pool keeps
    /// them quarantined. Bounded by lease + grace only if the peer is proven gone.
    pub async fn fenced(self) {}
}

/// The sending side of one process: connections to receivers, kept and reused per incarnation.
pub struct Sender {}

/// Settings of the sending side.
#[derive(Debug, Clone)]
pub struct SenderOptions {
    /// Usable transports.
    pub transports: TransportChoice,
    /// Time to connect and shake hands.
    pub connect_timeout: Duration,
    /// Time without progress after which an attempt fails.
    pub progress_timeout: Duration,
}

/// One attempt at the sender.
pub struct Outgoing {}

/// Progress of the prompt's pages, advanced by the step thread and read by senders; lock-free and
/// non-blocking. One per sequence, outlives attempts (a new grant starts from it).
#[derive(Debug)]
pub struct PageProgress {}

impl PageProgress {
    /// For a prompt whose local pages are `pages` (its page table, in order).
    pub fn new(layers: u32, page_size: u32, prompt_tokens: u32, pages: Vec<PageIndex>) -> Arc<Self> {
        let _ = (layers, page_size, prompt_tokens, pages);
        unimplemented!()
    }
    /// K and V of `layer` are complete for the first `tokens` tokens of the prompt. Pages that are
    /// full, or hold the end of the prompt, may leave.
    pub fn advance(&self, layer: u32, tokens: u32) {
        let _ = (layer, tokens);
    }
    /// Prefill's last step has ended (for the overlap figure).
    pub fn finish(&self) {}
}

/// Figures of a finished transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferStats {
    /// Transport used.
    pub transport: Transport,
    /// Payload bytes.
    pub bytes: u64,
    /// Payload bytes that had left before prefill's last step ended.
    pub bytes_before_finish: u64,
    /// First byte sent to CommitAck.
    pub elapsed: Duration,
}

impl Sender {
    /// `memory` is the local region that pages are read from.
    pub fn new(
        identity: Identity,
        layout: KvLayout,
        memory: Arc<dyn KvMemory>,
        options: SenderOptions,
    ) -> Self {
        let _ = (identity, layout, memory, options);
        unimplemented!()
    }

    /// Starts streaming what `progress` makes ready, until committed, revoked or dropped (a drop revokes).
    /// Must be called within a tokio runtime.
    pub fn begin(&self, grant: Grant, progress: Arc<PageProgress>) -> Outgoing {
        let _ = (grant, progress);
        unimplemented!()
    }
}

impl Outgoing {
    /// Resolves early if the attempt fails before it is committed (refused, broken, no progress).
    pub async fn failed(&mut self) -> TransferError {
        unimplemented!()
    }
    /// After the last page: sends Commit (count, digest, payload), waits for CommitAck.
    ///
    /// # Errors
    /// The attempt failed or was closed by the receiver; pages may be sent again under a new grant.
    pub async fn commit(self, payload: Vec<u8>) -> Result<TransferStats, TransferError> {
        let _ = payload;
        unimplemented!()
    }
    /// Sends Revoke and waits, bounded, for RevokeAck: after it nothing is written any more.
    pub async fn revoke(self) {}
}

/// Everything that can end a transfer; names follow the counters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The receiver does not know this transfer (never opened, or closed long ago).
    #[error("transfer {0:?} is not open")]
    Unknown(TransferId),
}
