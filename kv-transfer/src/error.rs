//! Everything that can end a transfer. It must not know sockets: system errors arrive as text.

use baton_proto::ids::{Incarnation, TransferId};

use crate::frame::FrameError;

/// Everything that can end a transfer; [`TransferError::name`] names the counter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The receiver does not know this transfer (never opened, or closed long ago).
    #[error("transfer {0:?} is not open")]
    Unknown(TransferId),
    /// The receiver refused the handshake.
    #[error("receiver refused: {0}")]
    Refused(Refusal),
    /// The grant does not fit this sender or its prompt.
    #[error("grant refused: {what} is {value}, expected {expected}")]
    Grant {
        /// Which figure.
        what: &'static str,
        /// Its value in the grant.
        value: u64,
        /// What this side expects (or its limit).
        expected: u64,
    },
    /// The two workers differ in these fingerprint fields.
    #[error("fingerprints differ in {}", .fields.join(", "))]
    Incompatible {
        /// Names of the differing fields.
        fields: Vec<String>,
    },
    /// No endpoint of the grant can be used from here.
    #[error("no usable endpoint: {detail}")]
    NoEndpoint {
        /// What was tried, and why it failed.
        detail: String,
    },
    /// Connecting and shaking hands took too long.
    #[error("no handshake within {limit_ms} ms")]
    ConnectTimeout {
        /// The limit.
        limit_ms: u64,
    },
    /// The data connection broke before the attempt was closed.
    #[error("data connection lost: {detail}")]
    ConnectionLost {
        /// The system's words.
        detail: String,
    },
    /// No progress for longer than allowed.
    #[error("no progress for {limit_ms} ms")]
    NoProgress {
        /// The limit.
        limit_ms: u64,
    },
    /// The receiver heard nothing of the attempt for a whole lease.
    #[error("lease of {lease_ms} ms expired without progress")]
    Expired {
        /// The lease.
        lease_ms: u64,
    },
    /// The attempt was closed by the receiver before it was committed.
    #[error("closed by the receiver: {0}")]
    Closed(CloseReason),
    /// The attempt was revoked or dropped on this side.
    #[error("revoked")]
    Revoked,
    /// Bytes of a page differ from what the sender sent.
    #[error(
        "checksum of layer {layer}, page {position} of the prompt is {found:08x}, stated {stated:08x}"
    )]
    Checksum {
        /// Layer.
        layer: u32,
        /// Page position in the prompt.
        position: u32,
        /// Checksum of the bytes that arrived.
        found: u32,
        /// Checksum that the frame stated.
        stated: u32,
    },
    /// All pages are there, but the sender's digest is another.
    #[error("digest of all pages differs")]
    Digest,
    /// Commit arrived while pieces were missing.
    #[error("committed with {landed} of {expected} pieces landed, {stated} stated")]
    Gap {
        /// Pieces that landed.
        landed: u64,
        /// Pieces of the manifest.
        expected: u64,
        /// Pieces the sender says it sent.
        stated: u64,
    },
    /// A frame names a page that the grant does not hold, or an old generation of it.
    #[error(
        "layer {layer}, position {position}: page {page} generation {generation} is not granted"
    )]
    StalePage {
        /// Layer named.
        layer: u32,
        /// Page position named.
        position: u32,
        /// Page index named.
        page: u32,
        /// Generation named.
        generation: u32,
    },
    /// The manifest differs from what was reserved.
    #[error("manifest states {what} = {value}, reserved is {expected}")]
    Manifest {
        /// Which figure.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What was reserved.
        expected: u64,
    },
    /// A frame that the protocol does not allow here.
    #[error("{0} frame out of turn")]
    OutOfTurn(&'static str),
    /// A frame that cannot be decoded.
    #[error("bad frame: {0}")]
    Frame(#[from] FrameError),
    /// The payload of Commit is too long.
    #[error("commit payload of {bytes} bytes, limit {limit}")]
    CommitPayload {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many attempts are open.
    #[error("{open} transfers are open, limit {limit}")]
    TooManyTransfers {
        /// Open now.
        open: usize,
        /// The limit.
        limit: usize,
    },
    /// One (layer, page) piece is larger than a frame can carry.
    #[error("a piece of {bytes} bytes exceeds the frame limit of {limit}")]
    PieceTooLarge {
        /// Bytes of a piece.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The memory region is smaller than the layout, or the system refuses it.
    #[error("page memory: {detail}")]
    Memory {
        /// What is wrong.
        detail: String,
    },
    /// An address or socket path that cannot be bound.
    #[error("cannot listen on {address}: {detail}")]
    Bind {
        /// The address or path.
        address: String,
        /// The system's words.
        detail: String,
    },
    /// This side is shutting down.
    #[error("shutting down")]
    Shutdown,
}

impl TransferError {
    /// Short stable name, as counters and receipts use it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown_transfer",
            Self::Refused(refusal) => refusal.name(),
            Self::Grant { .. } => "bad_grant",
            Self::Incompatible { .. } => "fingerprint",
            Self::NoEndpoint { .. } => "no_endpoint",
            Self::ConnectTimeout { .. } => "connect_timeout",
            Self::ConnectionLost { .. } => "connection_lost",
            Self::NoProgress { .. } => "no_progress",
            Self::Expired { .. } => "expired",
            Self::Closed(_) => "closed",
            Self::Revoked => "revoked",
            Self::Checksum { .. } => "checksum_mismatch",
            Self::Digest => "digest_mismatch",
            Self::Gap { .. } => "gap",
            Self::StalePage { .. } => "stale_page",
            Self::Manifest { .. } => "manifest",
            Self::OutOfTurn(_) => "out_of_turn",
            Self::Frame(_) => "bad_frame",
            Self::CommitPayload { .. } => "commit_payload",
            Self::TooManyTransfers { .. } => "too_many_transfers",
            Self::PieceTooLarge { .. } => "piece_too_large",
            Self::Memory { .. } => "memory",
            Self::Bind { .. } => "bind",
            Self::Shutdown => "shutdown",
        }
    }

    pub(crate) fn lost(detail: impl std::fmt::Display) -> Self {
        Self::ConnectionLost {
            detail: detail.to_string(),
        }
    }
}

/// Why a receiver refuses a handshake. Crosses the wire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// This process is another start than the grant was made by.
    #[error("this is incarnation {found}, not {wanted}")]
    Incarnation {
        /// Whom the sender wanted.
        wanted: Incarnation,
        /// Who answers.
        found: Incarnation,
    },
    /// Fingerprints differ.
    #[error("fingerprints differ in {}", .0.join(", "))]
    Fingerprint(Vec<String>),
    /// No such transfer.
    #[error("unknown transfer")]
    Unknown,
    /// The transfer was open once and is closed.
    #[error("transfer is closed: {0}")]
    Closed(CloseReason),
    /// Another attempt of this transfer is open.
    #[error("attempt {wanted} is not attempt {found}")]
    Attempt {
        /// The sender's attempt.
        wanted: u32,
        /// The open one.
        found: u32,
    },
    /// The secret is wrong.
    #[error("wrong secret")]
    Secret,
    /// The sender's grant names other pages or generations than were reserved.
    #[error("the grant's page slots are not those that were reserved")]
    Slots,
    /// The secret has been used: a broken connection ends its attempt.
    #[error("secret already used")]
    AlreadyUsed,
    /// shm: the peer runs as another user.
    #[error("peer is another user")]
    OtherUser,
    /// shm: the peer is on another host.
    #[error("peer is on another host")]
    OtherHost,
    /// shm: too many pages of this peer are in quarantine; tcp still works.
    #[error("{pages} pages of this peer are in quarantine, cap {cap}")]
    Quarantine {
        /// Pages in quarantine.
        pages: u32,
        /// The cap.
        cap: u32,
    },
    /// The handshake could not be decoded.
    #[error("malformed handshake")]
    Malformed,
}

impl Refusal {
    /// Short stable name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Incarnation { .. } => "refused_incarnation",
            Self::Fingerprint(_) => "refused_fingerprint",
            Self::Unknown => "refused_unknown",
            Self::Closed(_) => "refused_closed",
            Self::Attempt { .. } => "refused_attempt",
            Self::Secret => "refused_secret",
            Self::Slots => "refused_slots",
            Self::AlreadyUsed => "refused_already_used",
            Self::OtherUser => "refused_other_user",
            Self::OtherHost => "refused_other_host",
            Self::Quarantine { .. } => "refused_quarantine",
            Self::Malformed => "refused_malformed",
        }
    }

    /// Whether another endpoint of the same grant may still work.
    pub const fn only_this_transport(&self) -> bool {
        matches!(
            self,
            Self::OtherUser | Self::OtherHost | Self::Quarantine { .. }
        )
    }
}

/// Why a receiver closed an attempt. Crosses the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum CloseReason {
    /// It was committed.
    #[error("committed")]
    Committed = 1,
    /// The sender revoked it.
    #[error("revoked")]
    Revoked = 2,
    /// The receiving worker dropped it.
    #[error("dropped")]
    Dropped = 3,
    /// Its lease expired.
    #[error("lease expired")]
    Expired = 4,
    /// Bytes or digest were wrong.
    #[error("wrong bytes")]
    Corrupt = 5,
    /// Pieces were missing at Commit.
    #[error("missing pieces")]
    Gap = 6,
    /// A page or generation that was not granted.
    #[error("page not granted")]
    StalePage = 7,
    /// The protocol was violated.
    #[error("protocol violation")]
    Violation = 8,
    /// Its connection broke.
    #[error("connection lost")]
    ConnectionLost = 9,
    /// The receiver is shutting down.
    #[error("shutting down")]
    Shutdown = 10,
}

impl CloseReason {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        const ALL: [CloseReason; 10] = [
            CloseReason::Committed,
            CloseReason::Revoked,
            CloseReason::Dropped,
            CloseReason::Expired,
            CloseReason::Corrupt,
            CloseReason::Gap,
            CloseReason::StalePage,
            CloseReason::Violation,
            CloseReason::ConnectionLost,
            CloseReason::Shutdown,
        ];
        ALL.into_iter().find(|reason| *reason as u8 == code)
    }
}
