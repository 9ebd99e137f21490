//! Sending batches to a collector: one at a time, again while that may help, and never for longer than a bound.
//!
//! It must not know where batches come from.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// First and longest wait before a batch is sent again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// A collector, which may be there or not.
pub(super) struct Collector {
    client: TraceServiceClient<Channel>,
    metadata: MetadataMap,
    resource: ResourceAttributesWithSchema,
    timeout: Duration,
}

impl Collector {
    /// Connects when the first batch is sent. To be called on the runtime that sends.
    pub(super) fn new(
        endpoint: &Endpoint,
        metadata: MetadataMap,
        resource: &Resource,
        timeout: Duration,
    ) -> Self {
        Self {
            client: TraceServiceClient::new(endpoint.connect_lazy()),
            metadata,
            resource: resource.into(),
            timeout,
        }
    }

    /// Sends a batch; how many of its spans the collector took.
    ///
    /// # Errors
    /// It was refused, or nobody took it in time.
    pub(super) async fn send(&mut self, batch: Vec<SpanData>) -> Result<usize, Status> {
        let spans = batch.len();
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let until = Instant::now() + self.timeout;
        let mut wait = AGAIN.0;
        loop {
            let sent = tokio::time::timeout_at(until, self.try_send(resource_spans.clone()));
            let status = match sent.await {
                Ok(Ok(rejected)) => return Ok(spans.saturating_sub(rejected)),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer"),
            };
            if !may_pass(status.code()) || Instant::now() + wait >= until {
                return Err(status);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(AGAIN.1);
        }
    }

    async fn try_send(&mut self, resource_spans: Vec<ResourceSpans>) -> Result<usize, Status> {
        let mut request = Request::new(ExportTraceServiceRequest { resource_spans });
        *request.metadata_mut() = self.metadata.clone();
        let answer = self.client.export(request).await?.into_inner();
        let rejected = answer.partial_success.map_or(0, |some| some.rejected_spans);
        Ok(usize::try_from(rejected).unwrap_or(0))
    }
}

/// Whether the same batch may be taken later, by the OTLP specification.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    )
}
