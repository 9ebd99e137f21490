//! Where ended spans wait for the exporter: bounded, and never waited at. It must not know how they leave.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tokio::sync::mpsc;

use super::counts::{Counts, add};

/// The end of the queue at which spans come in.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) spans: mpsc::Sender<SpanData>,
    pub(super) counts: Arc<Counts>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            add(&self.counts.dropped, 1);
        }
    }

    /// Flushing is the exporter's, which is bounded and asynchronous.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
