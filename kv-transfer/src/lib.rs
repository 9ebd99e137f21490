//! Grants, sender and receiver state machines, transports.
//!
//! A decode worker's [`Receiver`] opens an attempt for pages it has reserved; the grant travels over
//! the router to a prefill worker, whose [`Sender`] streams pages as [`PageProgress`] makes them ready.
//! Both sides are a pure state machine per attempt (`receive/attempt.rs`, `send/attempt.rs`) driven by
//! one task per data connection. Over tcp the receiver reads payload straight into the granted pages;
//! over shm the sender writes them itself.
//!
//! Knows pages as bytes under a layout. It must not know models, schedulers or the router.

mod checksum;
mod counters;
mod error;
mod frame;
mod identity;
mod page_access;
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
pub use progress::PageProgress;
pub use receive::{Incoming, Outcome, Receiver, ReceiverOptions, Reservation};
pub use send::{Outgoing, Sender, SenderOptions, TransferStats};
pub use shm::{SharedMemory, shared_memory};
