//! The crate's one error type. Its mapping to gRPC codes is the workers' business.

use baton_model_file::FileError;

/// What can go wrong in loading or in a step.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A slice of a batch is malformed.
    #[error("slice {slice}: {reason}")]
    BadSlice {
        /// Index in the batch.
        slice: usize,
        /// What is wrong, with value and limit.
        reason: String,
    },
    /// A page copy of a batch is malformed.
    #[error("page copy {copy}: {reason}")]
    BadCopy {
        /// Index in the batch.
        copy: usize,
        /// What is wrong, with value and limit.
        reason: String,
    },
    /// The batch as a whole exceeds what the engine was built for.
    #[error("the batch has {value} {what}, the engine was built for {limit}")]
    BatchTooLarge {
        /// `tokens` or `logits rows`.
        what: &'static str,
        /// What the batch has.
        value: usize,
        /// What fits.
        limit: usize,
    },
    /// Tensors are missing or have the wrong shape; all of them are listed.
    #[error("the model cannot be loaded: {}", .0.join("; "))]
    Tensors(Vec<String>),
    /// The model needs something that this engine does not do.
    #[error("unsupported model: {0}")]
    Unsupported(String),
    /// Reading the weights failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Options that make no sense, or that this machine cannot satisfy.
    #[error("engine option {option}: {reason}")]
    Option {
        /// Field of [`crate::CpuOptions`].
        option: &'static str,
        /// What is wrong, with value and limit.
        reason: String,
    },
    /// The KV region or its layout does not fit the model.
    #[error("KV region: {0}")]
    Region(String),
    /// The system refused memory or threads.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}
