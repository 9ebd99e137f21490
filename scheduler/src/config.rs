//! Settings of a scheduler, checked once. It must not know where they come from.

use std::time::Duration;

use crate::SequenceError;

/// Settings, validated once (by [`spawn`](crate::spawn)).
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Pages in the pool, at least 1.
    pub pages: u32,
    /// Tokens per page, at least 1.
    pub page_size: u32,
    /// Most tokens in one step, at least 1.
    pub token_budget: usize,
    /// Most tokens of one chunk, from 1 to the budget.
    pub max_chunk: usize,
    /// Most slices (chunks and decode rows) in one step, at least 1.
    pub max_batch: usize,
    /// Most rows of logits in one step for log-probabilities of prompts, at least 1; the slices' own rows
    /// come on top. Bounds the chunks of such prompts.
    pub max_prompt_rows: usize,
    /// Most requests waiting (preempted ones aside), at least 1.
    pub max_queued: usize,
    /// Share of the pool that admission keeps free for growth, percent, at most 90.
    pub headroom_percent: u32,
    /// A running choice gets a token at least every this many steps, at least 1. Together with the
    /// budget this bounds how many choices run at a time.
    pub decode_every: u32,
    /// Key of page hashes: the fingerprint's digest.
    pub fingerprint_digest: [u8; 32],
    /// Whether prefix caching is on.
    pub prefix_cache: bool,
    /// The model's end-of-sequence ids.
    pub eos_ids: Vec<u32>,
    /// A sequence whose reader takes nothing for this long is cancelled.
    pub write_deadline: Duration,
    /// Start no new hand-off prompt while more pages than this wait for grants (prefill workers).
    pub max_pages_awaiting_grant: u32,
}

/// Highest `headroom_percent`.
const MAX_HEADROOM_PERCENT: u32 = 90;

impl SchedulerConfig {
    /// Checks every field.
    pub(crate) fn validate(&self) -> Result<(), SequenceError> {
        let most = usize::MAX;
        range("pages", self.pages as usize, 1, u32::MAX as usize)?;
        range("page_size", self.page_size as usize, 1, u32::MAX as usize)?;
        range("token_budget", self.token_budget, 1, most)?;
        range("max_chunk", self.max_chunk, 1, self.token_budget)?;
        range("max_batch", self.max_batch, 1, most)?;
        range("max_prompt_rows", self.max_prompt_rows, 1, most)?;
        range("max_queued", self.max_queued, 1, most)?;
        let headroom = self.headroom_percent as usize;
        range(
            "headroom_percent",
            headroom,
            0,
            MAX_HEADROOM_PERCENT as usize,
        )?;
        range("decode_every", self.decode_every as usize, 1, most)
    }

    /// Pages that admission keeps free for growth.
    pub(crate) fn headroom_pages(&self) -> u32 {
        (u64::from(self.pages) * u64::from(self.headroom_percent)).div_ceil(100) as u32
    }

    /// Most slices in a step, chunks and decode rows together.
    pub(crate) fn rows(&self) -> usize {
        self.max_batch.min(self.token_budget)
    }

    /// Most decode rows in a step while chunks wait: an eighth of the budget and one slice are theirs.
    /// At least 1, also where a step has one slice only.
    pub(crate) fn decode_rows_beside_chunks(&self) -> usize {
        let chunk_tokens = (self.token_budget / 8).max(1);
        let by_tokens = self.token_budget - chunk_tokens;
        (self.max_batch - 1).min(by_tokens).max(1)
    }

    /// Most choices running at a time, so that each gets its row every `decode_every` steps.
    pub(crate) fn max_running(&self) -> usize {
        self.decode_rows_beside_chunks()
            .saturating_mul(self.decode_every as usize)
    }
}

fn range(name: &str, value: usize, low: usize, high: usize) -> Result<(), SequenceError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let reason = format!("{name} is {value}, allowed: {low} to {high}");
    Err(SequenceError::BadConfig(reason))
}
