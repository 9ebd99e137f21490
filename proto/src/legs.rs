//! What travels on the two legs of a request, as domain types.
//!
//! It must not know the request task or the workers' loops.

use std::time::Duration;

use crate::domain::{GeneratedToken, Grant, PromptLogprobs, SequenceSpec, Transport};
use crate::ids::Attempt;

/// Router to prefill worker.
#[derive(Debug, Clone, PartialEq)]
pub enum PrefillCommand {
    /// First message, exactly once.
    Start {
        /// The request.
        spec: Box<SequenceSpec>,
        /// Whether a decode leg will follow.
        hand_off: bool,
    },
    /// Pages to stream to; a higher attempt replaces the one before.
    Grant(Box<Grant>),
}

/// Prefill worker to router.
#[derive(Debug, Clone, PartialEq)]
pub enum PrefillEvent {
    /// The first chunk is starting; the prompt's pages are reserved.
    Scheduled(Scheduled),
    /// Of the next prompt tokens, before the first token.
    PromptLogprobs(PromptLogprobs),
    /// First token of one choice.
    FirstToken(GeneratedToken),
    /// Last message of a good leg.
    Done(PrefillReport),
    /// This attempt's transfer broke; the pages stay pinned for another grant.
    TransferFailed {
        /// The attempt.
        attempt: Attempt,
        /// Why, in the worker's words.
        reason: String,
    },
    /// A chunk has been computed, and more of the same prompt follow.
    ChunkDone {
        /// Leading tokens that are computed.
        computed_tokens: u32,
    },
    /// There is nothing else to say, and nothing is wrong.
    Alive,
}

/// There is nothing else to say, and nothing is wrong: on either leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alive;

/// A prompt's computation has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduled {
    /// Prompt tokens already held.
    pub cached_tokens: u32,
    /// Time in the worker's queue.
    pub queue: Duration,
}

/// What a prefill leg measured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrefillReport {
    /// First chunk's start to last chunk's end.
    pub prefill: Duration,
    /// Pages ready, no grant yet.
    pub grant_wait: Duration,
    /// First byte sent to `CommitAck`.
    pub transfer: Duration,
    /// Bytes sent.
    pub transfer_bytes: u64,
    /// Of them, before the last step ended.
    pub bytes_before_last_step: u64,
    /// How they were sent, if any were.
    pub transport: Option<Transport>,
    /// False without hand-off and when the first tokens ended every choice.
    pub committed: bool,
    /// Attempt whose grant was committed.
    pub attempt: Option<Attempt>,
}

/// Router to decode worker.
#[derive(Debug, Clone, PartialEq)]
pub enum DecodeCommand {
    /// First message, exactly once.
    Start {
        /// The request.
        spec: Box<SequenceSpec>,
        /// True: prefill here; false: reserve and grant.
        local_prefill: bool,
    },
    /// A stop string has matched: this choice ends now.
    CancelChoice(u32),
}

/// Decode worker to router.
#[derive(Debug, Clone, PartialEq)]
pub enum DecodeEvent {
    /// Reserved pages.
    Grant(Box<Grant>),
    /// All pages have been verified.
    Landed {
        /// The attempt.
        attempt: Attempt,
        /// What Commit carried.
        first_tokens: Vec<GeneratedToken>,
    },
    /// One token.
    Token(GeneratedToken),
    /// Of the next prompt tokens of a local prefill, before the first token.
    PromptLogprobs(PromptLogprobs),
    /// Last message of a good leg.
    Done(DecodeReport),
    /// The first chunk of a local prefill is starting.
    Scheduled(Scheduled),
    /// A chunk has been computed, and more follow before the next token.
    ChunkDone {
        /// Leading tokens that are computed.
        computed_tokens: u32,
    },
    /// There is nothing else to say, and nothing is wrong.
    Alive,
}

/// What a decode leg measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecodeReport {
    /// Landed to the end of the first decode step.
    pub landing: Duration,
    /// Times the sequence was preempted.
    pub preemptions: u32,
    /// Time of a local prefill.
    pub prefill: Duration,
    /// Prompt tokens the worker already held.
    pub cached_tokens: u32,
}
