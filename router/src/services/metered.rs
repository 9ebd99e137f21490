//! A response whose tokens are counted against a key as they leave. It must not know limits.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use baton_proto::v1;
use baton_proto::v1::generate_response::Event;
use tokio::time::Instant;
use tokio_stream::Stream;
use tonic::Status;

use crate::keys::Key;
use crate::request::ResponseStream;

/// What a client receives.
#[derive(Debug)]
pub(crate) struct Metered {
    responses: ResponseStream,
    key: Option<Arc<Key>>,
}

impl Metered {
    pub(crate) fn new(responses: ResponseStream, key: Option<Arc<Key>>) -> Self {
        Self { responses, key }
    }
}

impl Stream for Metered {
    type Item = Result<v1::GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(Pin::new(&mut self.responses).poll_next(context));
        if let (Some(key), Some(Ok(response))) = (&self.key, &next)
            && let Some(Event::Token(token)) = &response.event
        {
            key.charge_completion(token.token_ids.len(), Instant::now());
        }
        Poll::Ready(next)
    }
}
