//! Events of several prompts as one stream; dropping it cancels them all. It must not know what they mean.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use baton_proto::v1::generate_response::Event;
use futures::future::Either;
use futures::stream::{SelectAll, select_all};
use futures::{FutureExt as _, Stream, StreamExt as _};
use tonic::Status;

use crate::error::RequestError;
use crate::services::Metered;

/// An event and its prompt, or why there is none.
pub(super) type Item = Result<(usize, Event), Status>;

/// What comes of all prompts.
#[derive(Debug)]
pub(super) struct Events {
    /// Taken before the others, to see how things go.
    first: Option<Item>,
    rest: Rest,
}

/// Most requests have one prompt.
type Rest = Either<Labelled, SelectAll<Labelled>>;

#[derive(Debug)]
struct Labelled {
    prompt: usize,
    responses: Metered,
}

impl Stream for Labelled {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        loop {
            let next = ready!(Pin::new(&mut self.responses).poll_next(context));
            return Poll::Ready(match next {
                None => None,
                Some(Err(status)) => Some(Err(status)),
                Some(Ok(response)) => match response.event {
                    Some(event) => Some(Ok((self.prompt, event))),
                    None => continue,
                },
            });
        }
    }
}

impl Events {
    /// Waits for the first event.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn begin(
        responses: impl IntoIterator<Item = Metered>,
    ) -> Result<Self, Status> {
        let mut labelled = (responses.into_iter().enumerate())
            .map(|(prompt, responses)| Labelled { prompt, responses });
        let mut rest = match (labelled.next(), labelled.next()) {
            (Some(only), None) => Either::Left(only),
            (first, second) => {
                let all = first.into_iter().chain(second).chain(labelled);
                Either::Right(select_all(all))
            }
        };
        match rest.next().await {
            Some(Ok(first)) => Ok(Self {
                first: Some(Ok(first)),
                rest,
            }),
            Some(Err(status)) => Err(status),
            None => Err(RequestError::Internal.into()),
        }
    }

    /// The next one, if there is one at once.
    pub(super) fn now(&mut self) -> Option<Item> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        self.rest.next().now_or_never().flatten()
    }

    /// The next one; none after the last, or after the first failure.
    pub(super) async fn next(&mut self) -> Option<Item> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let next = self.rest.next().await;
        if matches!(next, Some(Err(_))) {
            self.rest = Either::Right(SelectAll::new());
        }
        next
    }
}
