//! A response whose tokens are counted against a key as they leave. It must not know limits.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use baton_proto::v1;
use baton_proto::v1::generate_response::Event;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use crate::keys::Key;
use crate::request::ResponseStream;

/// What a client receives.
#[derive(Debug)]
pub(crate) struct Metered {
    responses: ResponseStream,
    /// Has come before it was asked for.
    first: Option<<ResponseStream as Stream>::Item>,
    key: Option<Arc<Key>>,
}

impl Metered {
    pub(crate) fn new(responses: ResponseStream, key: Option<Arc<Key>>) -> Self {
        Self {
            responses,
            first: None,
            key,
        }
    }

    /// Waits for the first event, but no longer than this: what goes before it can then go with it.
    pub(crate) async fn begin(&mut self, longest: Duration) {
        if let Ok(first) = tokio::time::timeout(longest, self.responses.next()).await {
            // After its end a stream ends again.
            self.first = first;
        }
    }
}

impl Stream for Metered {
    type Item = Result<v1::GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = match self.first.take() {
            Some(first) => Some(first),
            None => ready!(Pin::new(&mut self.responses).poll_next(context)),
        };
        if let (Some(key), Some(Ok(response))) = (&self.key, &next)
            && let Some(Event::Token(token)) = &response.event
        {
            key.charge_completion(token.token_ids.len(), Instant::now());
        }
        Poll::Ready(next)
    }
}
