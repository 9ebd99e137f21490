//! How far a prompt's pages are computed. It must not know transfers: several may read one progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use baton_kv_cache::PageIndex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Progress of the prompt's pages, advanced by the step thread and read by senders; never waits for
/// one. One per sequence, outlives attempts (a new grant starts from it).
///
/// The figures are atomics. Only a wake touches more: the list of waiting senders, a few instructions.
/// Waking a sender costs the step thread more than the figure itself, so senders are woken when
/// enough pieces have gathered for a write of useful size, and at the end of every chunk's last layer.
#[derive(Debug)]
pub struct PageProgress {
    page_size: u32,
    prompt_tokens: u32,
    pages: Vec<PageIndex>,
    /// Complete tokens per layer.
    tokens: Box<[AtomicU32]>,
    finished: AtomicBool,
    /// Pieces that became ready since senders were last woken.
    unannounced: AtomicU32,
    wake_pieces: AtomicU32,
    changed: Notify,
}

impl PageProgress {
    /// For a prompt whose local pages are `pages` (its page table, in order; pages behind the prompt's
    /// last are ignored).
    pub fn new(
        layers: u32,
        page_size: u32,
        prompt_tokens: u32,
        mut pages: Vec<PageIndex>,
    ) -> Arc<Self> {
        let page_size = page_size.max(1);
        pages.truncate(prompt_tokens.div_ceil(page_size) as usize);
        Arc::new(Self {
            page_size,
            prompt_tokens,
            pages,
            tokens: (0..layers).map(|_| AtomicU32::new(0)).collect(),
            finished: AtomicBool::new(false),
            unannounced: AtomicU32::new(0),
            wake_pieces: AtomicU32::new(1),
            changed: Notify::new(),
        })
    }

    /// K and V of `layer` are complete for the first `tokens` tokens of the prompt. Pages that are
    /// full, or hold the end of the prompt, may leave. Never goes back: fewer tokens than before
    /// change nothing.
    pub fn advance(&self, layer: u32, tokens: u32) {
        let Some(complete) = self.tokens.get(layer as usize) else {
            debug_assert!(false, "layer {layer} of {}", self.tokens.len());
            return;
        };
        // Release: whoever sees the figure sees the pages.
        let before = complete.fetch_max(tokens, Ordering::AcqRel);
        let gained = self
            .full_pages(tokens)
            .saturating_sub(self.full_pages(before));
        if gained == 0 {
            return;
        }
        let waiting = self.unannounced.fetch_add(gained, Ordering::Relaxed) + gained;
        let last_layer = layer as usize + 1 == self.tokens.len();
        if last_layer || waiting >= self.wake_pieces.load(Ordering::Relaxed) {
            self.unannounced.store(0, Ordering::Relaxed);
            self.changed.notify_waiters();
        }
    }

    /// Prefill's last step has ended (for the overlap figure).
    pub fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Local pages of the prompt, in order.
    pub fn pages(&self) -> &[PageIndex] {
        &self.pages
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Leading pages of `layer` that may leave.
    pub fn ready_pages(&self, layer: u32) -> u32 {
        let tokens = self
            .tokens
            .get(layer as usize)
            .map_or(0, |t| t.load(Ordering::Acquire));
        self.full_pages(tokens).min(self.pages.len() as u32)
    }

    pub(crate) fn layers(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Asks to be woken once so many pieces are ready (or a chunk is complete).
    pub(crate) fn wake_after(&self, pieces: u32) {
        self.wake_pieces.store(pieces.max(1), Ordering::Relaxed);
    }

    /// Resolves at the next wake. Enable it before reading the figures, so that none is missed.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    fn full_pages(&self, tokens: u32) -> u32 {
        if tokens >= self.prompt_tokens {
            self.prompt_tokens.div_ceil(self.page_size)
        } else {
            tokens / self.page_size
        }
    }
}
