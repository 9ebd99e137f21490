//! Identities. Newtypes, so that one is never taken for another.

use std::fmt;

/// Random id of one process start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

/// 128 random bits naming one transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransferId(pub [u8; 16]);

/// Hand-off attempt of a request, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt(pub u32);

/// Single-use secret of a grant.
#[derive(Clone, PartialEq, Eq)]
pub struct TransferSecret(pub [u8; 32]);

/// A span of another process, to link to: opaque here. Its bytes are trace id 16, span id 8, flags 1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanRef(pub [u8; 25]);

/// Name of a worker: `[A-Za-z0-9._-]{1,64}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(String);

/// The router's internal id of a request (never the client's label).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(pub String);

impl WorkerId {
    /// Checks the pattern; `None` when it does not match.
    pub fn new(name: &str) -> Option<Self> {
        let fits = (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        fits.then(|| Self(name.to_owned()))
    }
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for SpanRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for TransferSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransferSecret(…)")
    }
}
