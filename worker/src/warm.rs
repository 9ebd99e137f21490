//! The first steps of an engine, before anybody waits for them: they touch the weights, the scratch memory and the
//! code that every later step needs, so that the first request is as fast as the others.
//!
//! It must not know requests; what it writes to pages is read by nobody, for none of them is anybody's yet.

use baton_engine::{Batch, LogitRows, SequenceSlice, StepEngine};
use baton_kv_cache::{KvLayout, PageIndex};

use crate::WorkerError;

/// Tokens of the chunk: enough for the kernels of prefill, and little time even where the model is large.
const CHUNK_TOKENS: usize = 32;

/// Runs a chunk of a prompt and a decode row after it, on the first pages of a pool that nobody uses yet.
///
/// # Errors
/// The engine fails, as it would at a request.
pub(crate) fn warm(
    engine: &mut dyn StepEngine,
    layout: &KvLayout,
    token_budget: usize,
) -> Result<(), WorkerError> {
    let page_size = layout.page_size as usize;
    let room = (layout.pages as usize * page_size).min(engine.context_length() as usize);
    let token_ids = vec![0; CHUNK_TOKENS.min(token_budget).min(room)];
    let (chunk, row) = (token_ids.len(), 1.min(room - token_ids.len()));
    let pages = (chunk + row).div_ceil(page_size) as u32;
    let pages: Vec<PageIndex> = (0..pages).map(PageIndex).collect();
    for (position, tokens) in [(0, chunk), (chunk, row)] {
        if tokens > 0 {
            let slice = SequenceSlice {
                token_ids: &token_ids[..tokens],
                position: position as u32,
                pages: &pages,
                logits: LogitRows::Last,
            };
            let batch = Batch {
                copies: &[],
                slices: &[slice],
            };
            engine.step(&batch, &mut |_| {})?;
        }
    }
    Ok(())
}
