//! Traces: spans of requests, sent to an OpenTelemetry collector over OTLP (gRPC).
//!
//! A [`Tracer`] that is off, and a request that is not sampled, cost a branch: nothing is allocated, and
//! [`Span::is_recording`] says so before anybody builds attributes. Ended spans go into a bounded queue and are
//! sent by a thread with a runtime of its own ([`start`]); what finds no room there is dropped and counted.
//! Nothing here ever waits for a collector, but [`Exporter::finish`], which is bounded.
//!
//! It must not know what the spans are about.

mod collector;
mod context;
mod counts;
mod exporter;
mod queue;
mod resource;
mod sampling;
mod settings;
mod span;
mod tracer;

#[cfg(test)]
mod tests;

pub use context::{TRACEPARENT, TRACESTATE, TraceContext};
pub use exporter::{Exporter, start};
pub use opentelemetry::{KeyValue, Value};
pub use settings::{Identity, Settings};
pub use span::{Kind, Span};
pub use tracer::Tracer;
