//! Text to token ids, off the async threads and only so many at a time.
//!
//! It must not know what the ids are for.

use std::sync::Arc;

use baton_text::{TextError, TextModel};
use tokio::time::Instant;

use crate::error::RequestError;
use crate::gate::Gate;

/// Text that is tokenized in less time than it takes to hand it to another thread, in bytes.
const INLINE_BYTES: usize = 512;

/// The threads that tokenize.
#[derive(Debug)]
pub(crate) struct Tokenizing {
    gate: Gate,
}

impl Tokenizing {
    pub(crate) fn new(threads: usize, max_waiting: usize) -> Self {
        Self {
            gate: Gate::new("tokenizing", threads, max_waiting),
        }
    }

    /// Runs `work` over `bytes` of text.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        model: &Arc<TextModel>,
        bytes: usize,
        until: Instant,
        work: impl FnOnce(&TextModel) -> Result<T, TextError> + Send + 'static,
    ) -> Result<T, RequestError> {
        if bytes <= INLINE_BYTES {
            return Ok(work(model)?);
        }
        let place = self.gate.enter(1, until).await?;
        let model = Arc::clone(model);
        // The place goes with the work: it is taken until the thread is free, whoever still waits.
        let worked = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&model)
        });
        match worked.await {
            Ok(result) => Ok(result?),
            Err(_) => Err(RequestError::Internal),
        }
    }
}
