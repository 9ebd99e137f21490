//! What a sequence's owner hears. It must not know the wire.

use baton_kv_cache::{Generation, PageIndex};
use baton_sampling::TokenLogprobs;

use crate::{SequenceError, SequenceId};

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// End-of-sequence or stop token id.
    Stop,
    /// `max_tokens` or the context limit.
    Length,
}

/// One sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Choice index.
    pub choice: u32,
    /// Completion index.
    pub position: u32,
    /// Token id.
    pub token_id: u32,
    /// If requested.
    pub logprobs: Option<TokenLogprobs>,
    /// Set on the last token of the choice.
    pub finish: Option<FinishReason>,
}

/// What a sequence's owner hears, in order, through a bounded channel.
///
/// A full channel pauses the sequence; a closed one cancels it.
#[derive(Debug, Clone, PartialEq)]
pub enum SequenceEvent {
    /// Pages of the whole prompt are reserved and the first chunk starts.
    Scheduled {
        /// Tokens already held (whole pages).
        cached_tokens: u32,
        /// The page table of what is computed before the first new token: the prompt and, where one
        /// choice runs, its completion so far.
        pages: Vec<PageIndex>,
    },
    /// A chunk has been computed, and more of its tokens follow before the next one is sampled.
    ChunkDone {
        /// Leading tokens that are computed.
        computed_tokens: u32,
    },
    /// Log-probabilities of prompt tokens, if requested: in order, each once, before any token.
    PromptLogprobs {
        /// Prompt index of the first; the first token of a prompt has none.
        position: u32,
        /// One for each prompt token from there on (`chosen`).
        entries: Vec<TokenLogprobs>,
    },
    /// A token.
    Token(Token),
    /// Prompt computed, first tokens sampled and (with `HandOff`) pages pinned.
    PromptDone {
        /// Choices that go on, ascending.
        running_choices: Vec<u32>,
    },
    /// First step after landing has ended; its tokens follow.
    FirstStep,
    /// All choices ended; pages are given back. Last event. Never sent with `HandOff`.
    Done {
        /// Times this sequence was preempted.
        preemptions: u32,
    },
    /// The sequence ended by an error. Last event. Pages are given back, except those that a transfer
    /// may still touch (`HandOff`, or reserved and not landed): these wait for
    /// [`StepHandle::release`](crate::StepHandle::release).
    Failed(SequenceError),
}

/// Pages reserved on a decode worker for a prompt to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedPages {
    /// The sequence that will land there.
    pub id: SequenceId,
    /// Slots after the reused prefix, in order; at least one.
    pub slots: Vec<(PageIndex, Generation)>,
    /// Leading pages already held here and referenced.
    pub reused_pages: u32,
}
