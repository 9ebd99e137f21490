//! The shared-memory transport: the receiver's pool is a sealed memfd whose descriptor goes to peers
//! of the same host and user over a Unix socket; the sender maps it and writes final pages itself.
//!
//! What makes late writes harmless: the sender writes only while its attempt is open as far as it
//! knows, in the task that owns the socket, so that the socket cannot close at the sender's side while
//! a copy runs; and the receiver keeps pages of a broken attempt in quarantine until the sender has
//! said that it stopped, or the sender's end of the socket is gone. A receiver's own close proves
//! nothing: the sender may be inside a copy. This module must not know attempts.
#![allow(unsafe_code)] // Maps memory shared between processes; every block states why it is sound.

mod alive;
mod descriptor;
mod memory;
mod name;
mod peer;

pub use memory::{SharedMemory, shared_memory};

pub(crate) use alive::{has_ended, is_dead};
pub(crate) use descriptor::{receive_with_memory, same_user, send_with_memory};
pub(crate) use name::{is_socket_name, socket_name};
pub(crate) use peer::PeerMemory;
