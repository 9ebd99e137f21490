//! A model of etcd: keys with revisions, leases, watches and compaction ([`store`]), served over the
//! simulated network ([`service`]) by a process that can die, stop, forget, fall silent or answer late
//! ([`process`]).
//!
//! Only what membership asks of etcd is here. It must not know workers or routers.

pub mod process;
pub mod service;
pub mod store;

/// etcd's own messages and services.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    unreachable_pub,
    unused_qualifications
)]
pub(crate) mod wire {
    tonic::include_proto!("etcdserverpb");
}
