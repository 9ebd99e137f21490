//! Counts how a request ended, also when its task is simply dropped, and tells the log of one that never began.
//!
//! It must not know why.

use std::fmt;
use std::sync::Arc;

use axum::http::HeaderMap;
use baton_telemetry::traces::TraceContext;
use tonic::Code;

use super::admission::is_harmless;
use crate::counters::Counters;
use crate::recent::Api;

/// One request's outcome; cancelled unless something else is said.
#[derive(Debug)]
pub(crate) struct Ending {
    counters: Arc<Counters>,
    api: Api,
    /// Not known to be until its model has been looked at.
    of_served_model: bool,
    code: Code,
    /// The caller's span, then the request's own.
    trace: Option<TraceContext>,
    /// As the client gives it, if it is harmless.
    label: String,
}

impl Ending {
    /// Of a call that came with these headers.
    pub(crate) fn new(counters: &Arc<Counters>, api: Api, headers: &HeaderMap) -> Self {
        Self::of_trace(counters, api, TraceContext::from_headers(headers))
    }

    /// Of a request that belongs to this span.
    pub(crate) fn of_trace(
        counters: &Arc<Counters>,
        api: Api,
        trace: Option<TraceContext>,
    ) -> Self {
        Counters::add(&counters.requests_received);
        Self {
            counters: Arc::clone(counters),
            api,
            of_served_model: false,
            code: Code::Cancelled,
            trace,
            label: String::new(),
        }
    }

    /// The span that it belongs to.
    pub(crate) fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// It has a span of its own now, and what its client calls it is known.
    pub(crate) fn concerns(&mut self, trace: Option<TraceContext>, label: &str) {
        self.trace = trace;
        if is_harmless(label) {
            label.clone_into(&mut self.label);
        }
    }

    /// It is refused before it has begun.
    pub(crate) fn refused(&mut self, code: Code, error: &dyn fmt::Display) {
        let trace_id = self.trace.as_ref().map(TraceContext::trace_id);
        let trace_id = trace_id.map(tracing::field::display);
        let label = (!self.label.is_empty()).then_some(&*self.label);
        tracing::debug!(trace_id, label, %error, "request refused");
        self.code = code;
    }

    /// It asks for the model that is served.
    pub(crate) fn is_of_served_model(&mut self) {
        self.of_served_model = true;
    }

    pub(crate) fn set(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.counters
            .ended(self.api, self.of_served_model, self.code);
    }
}
