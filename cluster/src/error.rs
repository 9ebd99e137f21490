//! What can go wrong with membership.
//!
//! It must not know how a process reports it.

use std::path::PathBuf;

/// Why a membership could not be set up, or why etcd was of no help for now.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The list is not TOML or has other keys.
    #[error("worker list: {0}")]
    Syntax(#[from] toml::de::Error),
    /// No workers in the list.
    #[error("worker list: `workers` is empty")]
    Empty,
    /// More workers than the router keeps connections to.
    #[error("worker list: {got} workers, the limit is {limit}")]
    TooMany {
        /// Listed.
        got: usize,
        /// Allowed.
        limit: usize,
    },
    /// A certificate, key or CA that cannot be used.
    #[error("{what}: {detail}")]
    Tls {
        /// Its file, or what it is.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Not `host:port`.
    #[error("`{address}` is not an address of the form host:port")]
    Address {
        /// As written, shortened.
        address: String,
    },
    /// Outside its pattern.
    #[error(
        "key prefix `{prefix}`: allowed are parts of 1 to 64 of A-Z a-z 0-9 . _ - with `/` between \
         them, none of them `.` or `..`, 128 bytes in all"
    )]
    Prefix {
        /// As written, shortened.
        prefix: String,
    },
    /// More endpoints than are tried in turn.
    #[error("{got} etcd endpoints, the limit is {limit}")]
    TooManyEndpoints {
        /// Named.
        got: usize,
        /// Allowed.
        limit: usize,
    },
    /// Settings that do not fit together.
    #[error("etcd over TLS: {0}")]
    EtcdTls(&'static str),
    /// A certificate, key or password cannot be read.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// Named.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// A call failed.
    #[error("etcd: {0}")]
    Etcd(String),
    /// A call was not answered in time.
    #[error("etcd does not answer {what}")]
    EtcdSilent {
        /// What was asked for.
        what: &'static str,
    },
    /// The lease has ended.
    #[error("the lease has ended")]
    LeaseEnded,
    /// The key of a worker that lives was deleted.
    #[error("the key was deleted")]
    KeyDeleted,
    /// Somebody else writes this worker's key.
    #[error("the key of this worker is being written by somebody else")]
    KeyContested,
}
