//! Membership over etcd: workers write one key per incarnation under a lease, routers read them.
//!
//! etcd is a hint, not the truth. A router connects to every worker that it has read of; who answers
//! as the one that the key names is in the table for as long as that connection lives, whatever
//! becomes of etcd or of the key. It must not know placement or requests.

mod candidates;
mod key;
mod listing;
mod options;
mod record;
mod registration;
mod session;
mod standing;
mod told;

#[cfg(test)]
mod tests;

pub use options::{EtcdOptions, EtcdPassword};
pub use record::is_etcd_entry;
pub use registration::EtcdRegistration;

pub(crate) use listing::keep_members;
pub(crate) use standing::Standing;
