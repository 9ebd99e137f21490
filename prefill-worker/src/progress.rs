//! Tells the transfer what the step loop has finished. It must not know either side's state.

use std::sync::{Arc, OnceLock};

use baton_kv_cache::{KvLayout, PageIndex};
use baton_kv_transfer::PageProgress;
use baton_scheduler::{LayerProgress, ProgressFactory};

/// Where a leg finds the progress of its prompt once the pages are known.
pub(crate) type SharedProgress = Arc<OnceLock<Arc<PageProgress>>>;

/// Forwards the step thread's calls; both ends are lock-free.
struct Forward(Arc<PageProgress>);

impl LayerProgress for Forward {
    fn advance(&self, layer: u32, tokens: u32) {
        self.0.advance(layer, tokens);
    }

    fn finish(&self) {
        self.0.finish();
    }
}

/// A factory for a prompt of `tokens` tokens, and where its product will be.
pub(crate) fn factory(layout: &KvLayout, tokens: u32) -> (ProgressFactory, SharedProgress) {
    let (layers, page_size) = (layout.layers, layout.page_size);
    let shared = SharedProgress::default();
    let place = shared.clone();
    let make = move |pages: &[PageIndex], cached_tokens: u32| -> Arc<dyn LayerProgress> {
        let progress = PageProgress::new(layers, page_size, tokens, pages.to_vec());
        if cached_tokens > 0 {
            for layer in 0..layers {
                progress.advance(layer, cached_tokens);
            }
        }
        let progress = place.get_or_init(|| progress);
        Arc::new(Forward(progress.clone()))
    };
    (Box::new(make), shared)
}
