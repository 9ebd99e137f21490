//! Begins spans, or nothing at all. It must not know what ends them.

use std::fmt;
use std::sync::Arc;

use opentelemetry_sdk::trace::SdkTracer;

use super::counts::Counts;
use super::{Kind, Span, TraceContext};

/// Where spans begin; off by default.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Tracing>>);

pub(super) struct Tracing {
    pub(super) tracer: SdkTracer,
    pub(super) counts: Arc<Counts>,
    /// Whether clients' headers are looked at.
    pub(super) takes_context: bool,
    /// Whether a caller that does not want its spans is believed.
    pub(super) believes: bool,
}

impl Tracer {
    /// Records nothing.
    pub const OFF: Self = Self(None);

    pub(super) fn new(tracing: Tracing) -> Self {
        Self(Some(Arc::new(tracing)))
    }

    /// The span of work that a caller may have a trace for: its own trace otherwise, if it is sampled. A tracer
    /// that is off passes the caller's context on.
    pub fn begin(
        &self,
        kind: Kind,
        name: impl FnOnce() -> String,
        caller: Option<TraceContext>,
    ) -> Span {
        match &self.0 {
            None => Span::passing(caller),
            Some(tracing) => {
                let caller = caller.filter(|_| tracing.takes_context);
                if tracing.is_unwanted(caller.as_ref()) {
                    return Span::passing(caller);
                }
                Span::start(&tracing.tracer, kind, name(), caller.as_ref(), None)
            }
        }
    }

    /// The span of work for a span of another process of the same service; off without one.
    pub fn join(&self, kind: Kind, name: &'static str, parent: Option<TraceContext>) -> Span {
        match (&self.0, parent) {
            (Some(tracing), Some(parent)) if !tracing.is_unwanted(Some(&parent)) => {
                Span::start(&tracing.tracer, kind, name, Some(&parent), None)
            }
            (_, parent) => Span::passing(parent),
        }
    }

    /// Spans exported, dropped and refused since the start, by name; nothing when off.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let counts = self.0.as_ref().map(|tracing| tracing.counts.snapshot());
        counts.into_iter().flatten()
    }
}

impl Tracing {
    /// Known before anything is built.
    fn is_unwanted(&self, caller: Option<&TraceContext>) -> bool {
        self.believes && caller.is_some_and(|caller| !caller.is_sampled())
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tracer").field(&self.0.is_some()).finish()
    }
}
