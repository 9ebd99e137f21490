//! The check of every request at the door: is it meant for this process and model, and is there time?
//! Sizes were checked against the model by the conversion. It must not know pages or queues.

use std::sync::Arc;

use baton_proto::domain;
use baton_proto::ids::Attempt;
use baton_scheduler::{ChoiceSoFar, SequenceSpec};
use tokio::time::Instant;

use crate::{LegError, Worker};

/// A request that may be queued.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// As the scheduler takes it.
    pub spec: SequenceSpec,
    /// Echoed with every token.
    pub attempt: Attempt,
}

impl Worker {
    /// Checks that a request was placed on this incarnation by this fingerprint, and accepts it
    /// unless the worker drains.
    ///
    /// # Errors
    /// Draining, or placed by stale knowledge.
    pub fn admit(&self, spec: domain::SequenceSpec) -> Result<Admitted, LegError> {
        let here = self.info().incarnation;
        if spec.incarnation != here {
            return Err(LegError::WrongIncarnation {
                asked: spec.incarnation,
                here,
            });
        }
        if spec.fingerprint_digest != self.fingerprint_digest() {
            return Err(LegError::FingerprintMismatch);
        }
        if self.is_draining() {
            return Err(LegError::Draining);
        }
        let completions = spec
            .completions
            .into_iter()
            .map(|completion| ChoiceSoFar {
                token_ids: completion.token_ids,
                ended: completion.ended,
            })
            .collect();
        Ok(Admitted {
            spec: SequenceSpec {
                request_id: spec.request_id.0,
                prompt: spec.prompt_ids.into(),
                completions,
                params: Arc::new(spec.params),
                cache_salt: spec.cache_salt.into(),
                deadline: (Instant::now() + spec.time_left).into_std(),
            },
            attempt: spec.attempt,
        })
    }
}
