//! What a worker is asked to do: one request's prompt, parameters and completion so far. It must not
//! know how it is scheduled.

use std::sync::Arc;
use std::time::Instant;

use baton_sampling::SamplingParams;

/// Local id of one request at this worker; its choices are the sequences. Ascending in order of
/// arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// One request at this worker.
#[derive(Debug, Clone)]
pub struct SequenceSpec {
    /// For logs.
    pub request_id: String,
    /// Prompt token ids, at least one.
    pub prompt: Arc<[u32]>,
    /// Completion so far: empty, or one per choice. Resume starts here.
    pub completions: Vec<ChoiceSoFar>,
    /// Parameters.
    pub params: Arc<SamplingParams>,
    /// Salt keyed into page hashes.
    pub cache_salt: Arc<[u8]>,
    /// Must end by then.
    pub deadline: Instant,
}

/// Tokens of one choice so far.
#[derive(Debug, Clone, Default)]
pub struct ChoiceSoFar {
    /// Token ids.
    pub token_ids: Vec<u32>,
    /// The choice has ended and does not run.
    pub ended: bool,
}

/// What happens when the prompt has been computed and the first tokens are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterPrompt {
    /// Go on decoding here.
    Decode,
    /// Keep the pages pinned until [`StepHandle::release`](crate::StepHandle::release).
    HandOff,
}
