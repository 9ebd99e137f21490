//! Grants, sender and receiver state machines, transports.
//!
//! A decode worker's [`Receiver`] opens an attempt for pages it has reserved; the grant travels over
//! the router to a prefill worker, whose [`Sender`] streams pages as [`PageProgress`] makes them ready.
//! Both sides are a pure state machine per attempt (`receive/attempt.rs`, `send/attempt.rs`) driven by
//! one task per data connection.
//!
//! ```text
//! sender                                        receiver
//! Hello (id, attempt, secret, fingerprint) ──▶  refuse by name, or admit once
//!                                          ◀──  Welcome (credit, pool; shm: the descriptor)
//! Open (manifest) ─────────────────────────▶
//! Pages (layer, run of slots, checksums) ──▶    slot and generation checked, then memory is touched
//!                                          ◀──  Credit (bytes that are in their pages)
//! KeepAlive (still computing) ─────────────▶    renews the lease; echoed
//! Commit (count, digest) ──────────────────▶    verified, or the attempt fails
//!                                          ◀──  CommitAck | Closed (reason) → RevokeAck
//! ```
//!
//! - One connection per attempt: it ends with its attempt, and attempts cannot stall each other.
//! - Over tcp the payload follows its head and is read straight into the granted pages; over shm the
//!   sender has written the pages, and the frame says so. Checksums are computed where the bytes lie.
//! - Copies run in the connection's task, in slices of at most 1 MiB (about 0.1 ms, longer where a copy
//!   is the first to touch a page of the pool, which commits its memory): a thread of its own per copy
//!   would only add a hand-over, and tasks that share a runtime stay responsive.
//! - Whoever touches a page holds a lock under which its attempt is open (the attempt's state at the
//!   receiver, a gate at the sender), so that closing an attempt is all it takes to keep its late bytes
//!   out. The exception is a sender that maps the receiver's pool: see `shm/mod.rs`.
//!
//! Knows pages as bytes under a layout. It must not know models, schedulers or the router.

mod checksum;
mod counters;
mod error;
mod frame;
mod identity;
mod network;
mod page_access;
mod panics;
mod progress;
mod read_buffer;
mod receive;
mod send;
mod shm;
mod socket;
#[cfg(test)]
mod tests;

pub use counters::Counters;
pub use error::{CloseReason, Refusal, TransferError};
pub use frame::{
    AttemptKey, Commit, Decoded, FRAME_VERSION, Frame, FrameError, HEADER_BYTES, Hello,
    MAX_BODY_BYTES, MAX_COMMIT_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES, MAX_RUN_PAGES, Manifest, PageMark,
    PagesHead, Welcome, decode_frame, decode_hello,
};
pub use identity::{Identity, TransportChoice, host_id};
pub use network::{DataStream, Listen, Network, Opening, Tcp};
pub use progress::PageProgress;
pub use receive::{Incoming, Outcome, Receiver, ReceiverOptions, Reservation};
pub use send::{Outgoing, Sender, SenderOptions, TransferStats};
pub use shm::{SharedMemory, shared_memory};
