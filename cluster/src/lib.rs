//! Membership: which workers there are, and how processes reach each other.
//!
//! [`Membership`] yields one immutable [`MemberTable`] at a time. It is filled by workers that
//! register with the router over a stream ([`Announcer`] → registry), or by asking the workers that a
//! fixed list or etcd names. [`http2`] holds the transport settings that all processes share. It must not know
//! placement, requests or pages.

#![forbid(unsafe_code)]

mod announce;
mod backoff;
mod connection;
mod dialer;
mod error;
mod etcd;
mod held;
pub mod http2;
mod incoming;
mod link;
mod membership;
mod preface;
mod registry;
mod replay;
mod static_list;
mod stream;
mod table;
mod tls;

#[cfg(test)]
mod tests;

pub use announce::{Announcer, Registration};
pub use backoff::Backoff;
pub use dialer::Dialer;
pub use error::ClusterError;
pub use etcd::{EtcdOptions, EtcdPassword, EtcdRegistration, is_etcd_entry};
pub use held::Held;
pub use incoming::{Connection, PeerInfo, Places, Seat, incoming, incoming_under};
pub use link::{Call, Links, framed_messages};
pub use membership::{CheckWorker, Membership};
pub use registry::Registry;
pub use static_list::{MAX_STATIC_WORKERS, StaticList};
pub use stream::{Accept, Accepted, Accepting, BoxStream, ByteStream};
pub use table::{MAX_MEMBERS, Member, MemberKey, MemberTable};
pub use tls::{Plane, Shown, Strangers, Tls, TlsFiles};
