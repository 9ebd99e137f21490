//! Wire ↔ domain, by role of the message. Every conversion from the wire checks before it builds.
//!
//! It must not know services or policies.

mod check;
mod legs;
mod sampling;
mod sequence;
mod transfer;
mod worker;

#[cfg(test)]
mod tests;

pub use sampling::{
    AdmissionDefaults, admitted_sampling_from_wire, sampling_from_wire, sampling_to_wire,
    stop_strings_from_wire,
};
pub use sequence::SequenceLimits;
