//! One leg of a request: a stream to one worker, whose end or drop ends the work there.
//!
//! It must not know the other leg or the client.

mod decode;
mod failure;
mod prefill;
mod silence;

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use baton_proto::domain::{Completion, SequenceSpec};
use baton_proto::ids::{Attempt, RequestId};
use baton_sampling::SamplingParams;
use baton_telemetry::traces::TraceContext;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;

use crate::workers::Worker;

pub(crate) use decode::DecodeLeg;
pub(crate) use failure::{FailureKind, LegFailure};
pub(crate) use prefill::PrefillLeg;

/// What both legs of a request carry, whoever they go to.
#[derive(Debug, Clone)]
pub(crate) struct LegRequest {
    pub(crate) request_id: String,
    pub(crate) prompt_ids: Arc<[u32]>,
    /// What the client has been sent already, by choice: legs go on from there. Empty at first.
    pub(crate) completions: Vec<Completion>,
    pub(crate) params: SamplingParams,
    pub(crate) cache_salt: Vec<u8>,
    pub(crate) deadline: Instant,
    /// Time for a worker to accept a leg, and for a decode worker to grant.
    pub(crate) open_timeout: Duration,
    /// Silence of a leg after which its worker has failed, unless its steps excuse more.
    pub(crate) progress_timeout: Duration,
    /// The span that the legs of the current attempt belong to.
    pub(crate) trace: Option<TraceContext>,
}

impl LegRequest {
    fn spec(&self, worker: &Worker, attempt: Attempt) -> SequenceSpec {
        SequenceSpec {
            request_id: RequestId(self.request_id.clone()),
            incarnation: worker.info.incarnation,
            fingerprint_digest: worker.digest,
            prompt_ids: self.prompt_ids.to_vec(),
            completions: self.completions.clone(),
            params: self.params.clone(),
            cache_salt: self.cache_salt.clone(),
            time_left: self.deadline.saturating_duration_since(Instant::now()),
            attempt,
        }
    }

    /// Headers of the call that opens a leg.
    fn headers(&self) -> HeaderMap {
        let mut headers = MetadataMap::new();
        if let Some(trace) = &self.trace {
            trace.insert_into(&mut headers);
        }
        headers.into_headers()
    }

    /// Whether the client has been sent tokens before this attempt.
    pub(crate) fn has_begun(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Whether the time that the client gave has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline <= Instant::now()
    }

    /// Whether less time is left than a worker may take to accept a leg: what ends early then says
    /// nothing about the worker.
    fn is_short(&self) -> bool {
        self.deadline <= Instant::now() + self.open_timeout
    }

    /// When a leg that is opened now must have been accepted.
    fn open_until(&self) -> Instant {
        (Instant::now() + self.open_timeout).min(self.deadline)
    }
}
