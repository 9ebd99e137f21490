//! Spans of legs: where they come from and how those of two workers find each other. It must not know what a leg does.

use baton_proto::ids::SpanRef;
use baton_telemetry::traces::{Kind, Span, TraceContext};
use tonic::metadata::MetadataMap;

use crate::Worker;

impl Worker {
    /// The span of a leg whose router sent this metadata; off unless the request is traced.
    pub fn leg_span(&self, name: &'static str, metadata: &MetadataMap) -> Span {
        let parent = TraceContext::from_headers(metadata.as_ref());
        self.tracer().join(Kind::Server, name, parent)
    }
}

/// What the peer of a transfer needs to link its own span to this one.
pub fn span_ref(span: &Span) -> Option<SpanRef> {
    let context = span.is_recording().then(|| span.context()).flatten();
    context.map(|context| SpanRef(context.to_bytes()))
}

/// The peer's span, if it has one.
pub fn linked_span(peer: Option<SpanRef>) -> Option<TraceContext> {
    peer.and_then(|SpanRef(bytes)| TraceContext::from_bytes(&bytes))
}
