//! What all requests share.
//!
//! It must not know any one request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use baton_proto::v1;
use baton_telemetry::traces::Tracer;

use crate::answers::Answers;
use crate::clients::Clients;
use crate::config::RouterConfig;
use crate::counters::Counters;
use crate::gate::Gate;
use crate::metrics::Timings;
use crate::model::ServedModel;
use crate::recent::Recent;
use crate::tokenizing::Tokenizing;
use crate::workers::Directory;

/// The router's state.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: RouterConfig,
    pub(crate) model: ServedModel,
    pub(crate) directory: Directory,
    pub(crate) counters: Arc<Counters>,
    pub(crate) timings: Arc<Timings>,
    /// Requests being served and waiting to be.
    pub(crate) gate: Gate,
    /// Answers that clients have not been given whole.
    pub(crate) answers: Answers,
    /// Calls in progress by client.
    pub(crate) clients: Arc<Clients>,
    pub(crate) tokenizing: Tokenizing,
    /// Requests of late.
    pub(crate) recent: Arc<Recent>,
    /// Set before anything is served, if spans are wanted.
    pub(crate) tracer: OnceLock<Tracer>,
}

impl Shared {
    /// Where spans of requests begin.
    pub(crate) fn tracer(&self) -> &Tracer {
        self.tracer.get().unwrap_or(&Tracer::OFF)
    }

    /// Takes the figures of a request that has ended well.
    pub(crate) fn note_receipt(&self, receipt: &v1::Receipt) {
        self.timings.of_receipt(receipt);
        let add = |counter: &AtomicU64, tokens: u32| {
            counter.fetch_add(u64::from(tokens), Ordering::Relaxed);
        };
        add(&self.counters.cached_tokens, receipt.cached_tokens);
        let of_hand_off = receipt.decode_cached_tokens;
        add(&self.counters.decode_cached_tokens, of_hand_off);
    }
}
