//! How a transfer learns which pages are complete while the prompt is being computed.
//!
//! It must not know of transfers, nor when steps run.

use std::sync::Arc;

use baton_kv_cache::PageIndex;

/// Told on the step thread after each layer of each step in which a `HandOff` sequence ran; must not
/// block.
pub trait LayerProgress: Send + Sync {
    /// K and V of `layer` are complete for the first `tokens` tokens.
    fn advance(&self, layer: u32, tokens: u32);
    /// The step with the prompt's last chunk has ended.
    fn finish(&self);
}

/// Makes the progress listener once the pages are known: `(pages, cached_tokens)`. Called on the step
/// thread when the sequence is scheduled; the cached tokens are complete in all layers already.
pub type ProgressFactory = Box<dyn FnOnce(&[PageIndex], u32) -> Arc<dyn LayerProgress> + Send>;
