//! What a request needs of its workers, at first and after part of it has been generated.
//!
//! It must not know workers beyond their fingerprints.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use baton_proto::domain::Completion;

use super::slot::Worker;
use crate::affinity::PrefixHashes;

/// What a request needs of its workers.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) prompt_ids: Arc<[u32]>,
    /// What is computed before the first new token: the prompt and, of a choice that goes on alone, its
    /// completion so far.
    pub(crate) trunk_ids: Arc<[u32]>,
    pub(crate) cache_salt: Vec<u8>,
    /// Choices that have not ended.
    pub(crate) choices: u32,
    pub(crate) max_tokens: u32,
    /// Most tokens that a choice still gets.
    pub(crate) tokens_left: u32,
    /// The prompt is computed from its start, whatever is held.
    pub(crate) from_start: bool,
    /// Longest prompt (less what is held) that is prefilled on the decode worker.
    pub(crate) local_tokens: u32,
    /// What decides the answer, once it has begun (see [`Worker::answers`]).
    pub(crate) answers: OnceLock<[u8; 32]>,
    /// Hashes of the trunk's prefixes by fingerprint digest, computed once each.
    pub(crate) hashes: Mutex<HashMap<[u8; 32], Arc<PrefixHashes>>>,
}

impl Wanted {
    /// Worst case in pages: the prompt's whole pages once, the rest per choice. The last token's K
    /// and V are never stored.
    pub(crate) fn pages(&self, page_size: u32) -> u64 {
        let page = u64::from(page_size.max(1));
        let prompt = self.prompt_ids.len() as u64;
        let own = prompt % page + u64::from(self.max_tokens.max(1)) - 1;
        prompt / page + u64::from(self.choices) * own.div_ceil(page)
    }

    pub(super) fn trunk_tokens(&self) -> u32 {
        self.trunk_ids.len() as u32
    }

    /// What is wanted of the next workers once so much has been generated, by choice.
    pub(crate) fn after(&self, completions: &[Completion]) -> Self {
        let mut open = completions.iter().filter(|choice| !choice.ended);
        let trunk_ids = match (open.next(), open.next()) {
            (Some(alone), None) => [&*self.prompt_ids, &alone.token_ids].concat().into(),
            _ => Arc::clone(&self.prompt_ids),
        };
        let open = || completions.iter().filter(|choice| !choice.ended);
        let fewest = open().map(|choice| choice.token_ids.len() as u32).min();
        Self {
            prompt_ids: Arc::clone(&self.prompt_ids),
            trunk_ids,
            cache_salt: self.cache_salt.clone(),
            choices: open().count() as u32,
            max_tokens: self.max_tokens,
            tokens_left: self.max_tokens.saturating_sub(fewest.unwrap_or(0)),
            // A token has been sent, so all has been told of the prompt.
            from_start: false,
            local_tokens: self.local_tokens,
            answers: self.answers.clone(),
            hashes: Mutex::default(),
        }
    }

    /// Hashes of the trunk's prefixes under a worker's fingerprint.
    pub(crate) fn prefixes(&self, worker: &Worker) -> Arc<PrefixHashes> {
        let mut hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let page_size = worker.info.fingerprint.page_size;
        let new =
            || PrefixHashes::new(&worker.digest, page_size, &self.cache_salt, &self.trunk_ids);
        Arc::clone(
            hashes
                .entry(worker.digest)
                .or_insert_with(|| Arc::new(new())),
        )
    }
}
