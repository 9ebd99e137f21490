//! Why bytes are not a frame. It must not know what a frame would have meant.

use super::FRAME_VERSION;

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version of the protocol.
    #[error("frame version {found}, expected {FRAME_VERSION}")]
    Version {
        /// Version found.
        found: u8,
    },
    /// No such kind.
    #[error("frame kind {0}")]
    Kind(u8),
    /// Reserved bits are set.
    #[error("reserved field is {0}, expected 0")]
    Reserved(u16),
    /// Longer than its kind allows.
    #[error("{kind} body of {bytes} bytes, limit {limit}")]
    TooLong {
        /// Kind of the frame.
        kind: &'static str,
        /// Its stated length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The body ends before its last field.
    #[error("body ends {missing} bytes early")]
    Truncated {
        /// Bytes missing.
        missing: usize,
    },
    /// The body goes on after its last field.
    #[error("{0} bytes after the last field")]
    Trailing(usize),
    /// A field is out of range.
    #[error("{what} is {value}, limit {limit}")]
    Value {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A string is not UTF-8.
    #[error("{0} is not UTF-8")]
    Text(&'static str),
}
