//! What a step is: the boundary between the scheduler and model execution.
//!
//! Nothing here knows requests, workers or networks.

use baton_kv_cache::PageIndex;
use baton_sampling::{PlainSampler, Sampler};

use crate::EngineError;

/// Tokens of one sequence to run in a step: a prompt chunk or a single decode row.
#[derive(Debug, Clone, Copy)]
pub struct SequenceSlice<'a> {
    /// Tokens to run, at least one.
    pub token_ids: &'a [u32],
    /// Absolute position of `token_ids[0]`; K and V of all earlier positions are in the pages.
    pub position: u32,
    /// The sequence's page table; covers `position + token_ids.len()` tokens.
    pub pages: &'a [PageIndex],
    /// Whose logits are wanted. Only these rows go through the output matrix.
    pub logits: LogitRows,
}

/// Which tokens of a slice give a row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogitRows {
    /// None: what comes next is known (a chunk in the middle of a prompt).
    None,
    /// The last one: what comes after the slice.
    Last,
    /// Every one: what was to be expected at each place of a prompt, and what comes after it.
    All,
}

impl LogitRows {
    /// Rows that a slice of `tokens` tokens, at least one, gives.
    pub const fn count(self, tokens: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => 1,
            Self::All => tokens,
        }
    }
}

/// One step's ragged batch.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Pages to copy (all layers) before anything is computed: copy-on-write, `(from, to)`.
    pub copies: &'a [(PageIndex, PageIndex)],
    /// Slices in any mix; no page is written by two of them.
    pub slices: &'a [SequenceSlice<'a>],
}

/// Logits of a step: the rows that its slices asked for, in slice order, within a slice in order of
/// position. The row of position `p` says what may stand at `p + 1`.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    /// `rows × vocabulary` values.
    pub values: &'a [f32],
    /// Width of a row.
    pub vocabulary: usize,
}

impl<'a> Logits<'a> {
    /// Row `index`, `vocabulary` wide.
    pub fn row(&self, index: usize) -> &'a [f32] {
        &self.values[index * self.vocabulary..(index + 1) * self.vocabulary]
    }
}

/// Runs steps. Implemented by the CPU engine, and by oracle engines in tests.
pub trait StepEngine: Send {
    /// Width of a logits row.
    fn vocabulary(&self) -> usize;
    /// Longest sequence, in tokens.
    fn context_length(&self) -> u32;
    /// What chooses tokens from the logits; the same bits whatever it is.
    fn sampler(&self) -> &'static dyn Sampler {
        &PlainSampler
    }
    /// Runs one step. `on_layer(l)` is called on this thread when K and V of layer `l` are in the
    /// pages for every slice of the batch; it must not block.
    ///
    /// # Errors
    /// A malformed batch (named slice and value); nothing has been written then.
    fn step(
        &mut self,
        batch: &Batch<'_>,
        on_layer: &mut dyn FnMut(u32),
    ) -> Result<Logits<'_>, EngineError>;
}
