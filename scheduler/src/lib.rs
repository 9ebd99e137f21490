//! The token-budget scheduler and the step loop that both kinds of worker run.
//!
//! The scheduler is pure: state and clock in, decision out. The step loop is its only owner and runs
//! on its own thread. Neither knows networks, transfers or the router.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::StepEngine;
use baton_kv_cache::{Generation, Ledger, PageIndex};
use baton_sampling::{SamplingParams, TokenLogprobs};
use tokio::sync::mpsc;

/// Local id of a sequence group (one request at this worker).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Settings, validated once.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Pages in the pool.
    pub pages: u32,
    /// Tokens per page.
    pub page_size: u32,
    /// Most tokens in one step.
    pub token_budget: usize,
    /// Most tokens of one chunk (≤ budget).
    pub max_chunk: usize,
    /// Most sequences (choices) in one step.
    pub max_batch: usize,
    /// Most requests waiting.
    pub max_queued: usize,
    /// Share of the pool that admission keeps free for growth, percent.
    pub headroom_percent: u32,
    /// A running choice gets a token at least every this many steps.
    pub decode_every: u32,
    /// Key of page hashes: the fingerprint's digest.
    pub fingerprint_digest: [u8; 32],
    /// Whether prefix caching is on.
    pub prefix_cache: bool,
    /// The model's end-of-sequence ids.
    pub eos_ids: Vec<u32>,
    /// A sequence whose reader takes nothing for this long is cancelled.
    pub write_deadline: Duration,
    /// Start no new prompt while this many pages wait for grants (prefill workers).
    pub max_pages_awaiting_grant: u32,
}

/// One request at this worker.
#[derive(Debug, Clone)]
pub struct SequenceSpec {
    /// For logs.
    pub request_id: String,
    /// Prompt token ids.
    pub prompt: Arc<[u32]>,
    /// Completion so far per choice (empty: none). Resume starts here.
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
    /// Keep the pages pinned until [`StepHandle::release`].
    HandOff,
}

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
#[derive(Debug, Clone, PartialEq)]
pub enum SequenceEvent {
    /// Pages of the whole prompt are reserved and the first chunk starts.
    Scheduled {
        /// Prompt tokens already held (whole pages).
        cached_tokens: u32,
        /// The prompt's page table.
        pages: Vec<PageIndex>,
    },
    /// A token.
    Token(Token),
    /// Prompt computed, first tokens sampled and (with `HandOff`) pages pinned. Choices that go on.
    PromptDone {
        /// Ascending.
        running_choices: Vec<u32>,
    },
    /// First decode step after landing has ended.
    FirstStep,
    /// All choices ended; pages are given back. Last event.
    Done {
        /// Times this sequence was preempted.
        preemptions: u32,
    },
    /// The sequence ended by an error; pages are given back. Last event.
    Failed(SequenceError),
}

/// Why a sequence was refused or ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// Prompt + `max_tokens` (over all choices) can never fit the pool.
    #[error("needs {needed} pages, the pool has {total}")]
    NeverFits {
        /// Worst case.
        needed: u32,
        /// Pool.
        total: u32,
    },
    /// Prompt longer than the model's context.
    #[error("prompt of {tokens} tokens exceeds the context of {limit}")]
    PromptTooLong {
        /// Given.
        tokens: u32,
        /// Limit.
        limit: u32,
    },
    /// No room now; try again.
    #[error("no room now: {needed} pages needed, {available} available")]
    NoRoom {
        /// Needed now.
        needed: u32,
        /// Free or evictable beyond the headroom.
        available: u32,
    },
    /// Too many requests wait.
    #[error("queue is full ({limit} waiting)")]
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
    /// The sampler or the engine failed for this sequence alone.
    #[error("{0}")]
    Internal(String),
    /// The worker drains.
    #[error("worker is draining")]
    Draining,
    /// The step loop has ended.
    #[error("step loop has ended")]
    Gone,
}

/// Told on the step thread after each layer of each step in which a `HandOff` sequence ran; must not block.
pub trait LayerProgress: Send + Sync {
    /// K and V of `layer` are complete for the first `tokens` prompt tokens.
    fn advance(&self, layer: u32, tokens: u32);
    /// The step with the prompt's last chunk has ended.
    fn finish(&self);
}

/// Makes the progress listener once the pages are known (called on the step thread when scheduled).
pub type ProgressFactory = Box<dyn FnOnce(&[PageIndex], u32 /* cached tokens */) -> Arc<dyn LayerProgress> + Send>;

/// Pages reserved on a decode worker for a prompt to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedPages {
    /// The sequence that will land there.
    pub id: SequenceId,
    /// Slots after the reused prefix, in order.
    pub slots: Vec<(PageIndex, Generation)>,
    /// Leading pages already held here and referenced.
    pub reused_pages: u32,
}

/// What the loop shows to the outside, refreshed after each step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadSnapshot {
    /// Requests waiting (preempted ones included).
    pub queued: u32,
    /// Choices running.
    pub running: u32,
    /// Prompt tokens not computed yet.
    pub queued_tokens: u64,
    /// The page ledger.
    pub ledger: Ledger,
    /// Median of recent steps, microseconds.
    pub step_us: u32,
    /// Steps since start.
    pub steps: u64,
    /// Tokens sampled since start.
    pub tokens: u64,
    /// Preemptions since start.
    pub preemptions: u64,
    /// Sequences cancelled since start.
    pub cancelled: u64,
    /// Pages evicted since start.
    pub evicted: u64,
    /// Prefix-hit tokens since start.
    pub prefix_hit_tokens: u64,
}

/// Talks to the step loop; cheap to clone. Dropping all handles ends the loop.
#[derive(Clone)]
pub struct StepHandle {}

impl StepHandle {
    /// Queues a prompt. Events arrive on `events`; `progress` only for `HandOff`.
    ///
    /// # Errors
    /// Refusals of admission, at once.
    pub async fn submit(
        &self,
        spec: SequenceSpec,
        after: AfterPrompt,
        progress: Option<ProgressFactory>,
        events: mpsc::Sender<SequenceEvent>,
    ) -> Result<SequenceId, SequenceError> {
        let _ = (spec, after, progress, events);
        Err(SequenceError::Gone)
    }
    /// Reserves pages for a prompt that another worker computes. The pages are `granted` until
    /// [`land`](Self::land), [`quarantine`](Self::quarantine) or [`release`](Self::release).
    ///
    /// # Errors
    /// Refusals of admission, at once.
    pub async fn reserve(
        &self,
        spec: SequenceSpec,
        events: mpsc::Sender<SequenceEvent>,
    ) -> Result<ReservedPages, SequenceError> {
        let _ = (spec, events);
        Err(SequenceError::Gone)
    }
    /// The transfer is committed: the reserved sequence runs from its first tokens on.
    ///
    /// # Errors
    /// Unknown id, or the loop has ended.
    pub async fn land(&self, id: SequenceId, first_tokens: Vec<Token>, running_choices: Vec<u32>) -> Result<(), SequenceError> {
        let _ = (id, first_tokens, running_choices);
        Err(SequenceError::Gone)
    }
    /// Broken transfer: the granted pages become quarantined until [`release`](Self::release).
    pub fn quarantine(&self, id: SequenceId) {
        let _ = id;
    }
    /// Gives back everything of a sequence, in whatever state; idempotent. This is cancel, CommitAck on
    /// the prefill side, and the end of quarantine.
    pub fn release(&self, id: SequenceId) {
        let _ = id;
    }
    /// Cancels one choice (a stop string matched).
    pub fn cancel_choice(&self, id: SequenceId, choice: u32) {
        let _ = (id, choice);
    }
    /// On a prefill worker: this sequence's pages no longer wait for a grant.
    pub fn granted(&self, id: SequenceId) {
        let _ = id;
    }
    /// Refuse new work from now on.
    pub fn drain(&self) {}
    /// Latest snapshot.
    pub fn snapshot(&self) -> Arc<LoadSnapshot> {
        Arc::new(LoadSnapshot::default())
    }
    /// Resolves when a newer snapshot than the given step count or any change is there.
    pub async fn changed(&mut self) {}
}

/// Starts the step loop on its own thread.
///
/// # Errors
/// Configuration out of range, named; or the thread cannot start.
pub fn spawn(engine: Box<dyn StepEngine>, config: SchedulerConfig) -> Result<StepHandle, SequenceError> {
    let _ = (engine, config);
    Err(SequenceError::Gone)
}
