//! Why a worker could not start or had to end. It must not know of single requests.

use std::net::SocketAddr;

use baton_cluster::ClusterError;
use baton_engine::EngineError;
use baton_kv_transfer::TransferError;
use baton_model_file::FileError;
use baton_scheduler::SequenceError;

/// Why a worker process could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// An option out of range.
    #[error("{option} is {value}, must be {allowed}")]
    Option {
        /// Name, as the command line spells it.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is accepted.
        allowed: String,
    },
    /// The gRPC address cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Asked for.
        address: SocketAddr,
        /// From the system.
        error: std::io::Error,
    },
    /// The model cannot be read.
    #[error("cannot read the model: {0}")]
    Model(#[from] FileError),
    /// The tokenizer of the model, which the fingerprint covers, cannot be built.
    #[error("cannot read the model's tokenizer: {0}")]
    Text(#[from] baton_text::TextError),
    /// The engine cannot be built.
    #[error("cannot build the engine: {0}")]
    Engine(#[from] EngineError),
    /// The pool would not fit into memory.
    #[error("{pages} pages of {page_bytes} bytes need {needed} bytes, {available} are available")]
    Memory {
        /// Pages asked for.
        pages: u32,
        /// Bytes of one.
        page_bytes: usize,
        /// Their product.
        needed: u64,
        /// What the machine has left.
        available: u64,
    },
    /// The data plane cannot start.
    #[error("cannot start the transfer: {0}")]
    Transfer(TransferError),
    /// The step loop cannot start.
    #[error("cannot start the step loop: {0}")]
    Scheduler(SequenceError),
    /// The worker cannot make itself known.
    #[error("cannot register: {0}")]
    Register(#[from] ClusterError),
    /// The gRPC server failed.
    #[error("gRPC server: {0}")]
    Server(#[from] tonic::transport::Error),
    /// The step loop ended by itself: the engine failed.
    #[error("the step loop has ended")]
    StepLoopEnded,
    /// A thread of the process panicked.
    #[error("internal: {0}")]
    Internal(String),
}
