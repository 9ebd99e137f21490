//! Why a sequence was refused or ended early. It must not know gRPC codes.

use std::time::Duration;

use baton_sampling::SampleError;

/// Why a sequence was refused or ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// The worst case (prompt + `max_tokens` of all choices) can never fit the pool.
    #[error("needs {needed} pages, the pool has {total}")]
    NeverFits {
        /// Worst case.
        needed: u32,
        /// Pool.
        total: u32,
    },
    /// The prompt leaves no room for a token in the model's context.
    #[error("prompt of {tokens} tokens exceeds the context's {limit}")]
    PromptTooLong {
        /// Given.
        tokens: u32,
        /// Longest prompt: one less than the context.
        limit: u32,
    },
    /// The spec contradicts itself or the model.
    #[error("bad sequence: {0}")]
    BadSpec(String),
    /// No room now; try again.
    #[error("no room now: {needed} pages needed, {available} available")]
    NoRoom {
        /// Needed now.
        needed: u32,
        /// Free or evictable beyond the headroom.
        available: u32,
    },
    /// Too many requests wait or run.
    #[error("queue is full ({limit})")]
    QueueFull {
        /// Limit.
        limit: usize,
    },
    /// The deadline passed.
    #[error("deadline passed")]
    DeadlineExceeded,
    /// The reader took nothing for the write deadline.
    #[error("reader took nothing for {0:?}")]
    SlowReader(Duration),
    /// The model gave logits from which no token can be chosen, for this sequence alone.
    #[error("{0}")]
    Logits(#[from] SampleError),
    /// The model gave logits that are no numbers, for this sequence's prompt alone.
    #[error("logits after prompt token {position} are not finite")]
    PromptLogits {
        /// Prompt index.
        position: u32,
    },
    /// The engine failed for this sequence alone.
    #[error("{0}")]
    Internal(String),
    /// No reserved sequence has this id (released, or never known).
    #[error("no reserved sequence with this id")]
    UnknownSequence,
    /// The worker drains.
    #[error("worker is draining")]
    Draining,
    /// The step loop has ended.
    #[error("step loop has ended")]
    Gone,
    /// A setting out of range.
    #[error("{0}")]
    BadConfig(String),
}
