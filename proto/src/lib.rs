//! baton.v1 messages and their conversion to domain types.
//!
//! The only place where wire types turn into domain types and back. It must not know transports,
//! engines or policies.

#![forbid(unsafe_code)]

mod convert;
pub mod domain;
mod error;
pub mod ids;
pub mod legs;
pub mod limits;
mod peer_message;

pub use convert::{
    AdmissionDefaults, SequenceLimits, admitted_sampling_from_wire, sampling_from_wire,
    sampling_to_wire, stop_strings_from_wire,
};
pub use error::{ConvertError, RETRY_AFTER_KEY, code_name, overloaded, retry_after};
pub use peer_message::PeerMessage;

/// Generated code of baton.v1.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    unreachable_pub,
    unused_qualifications
)]
pub mod v1 {
    tonic::include_proto!("baton.v1");
}

/// Encoded descriptors of baton.v1, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/baton_descriptor.bin"));
