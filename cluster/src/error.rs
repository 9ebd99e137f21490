//! What can go wrong with membership.
//!
//! It must not know how a process reports it.

/// Why a membership could not be set up.
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
    /// Not `host:port`.
    #[error("`{address}` is not an address of the form host:port")]
    Address {
        /// As written, shortened.
        address: String,
    },
}
