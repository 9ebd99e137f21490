//! The way to the client: bounded, merged while the client is behind, ended by a write deadline.
//!
//! The end of a request's stream is always told: after `Done`, or with a status. It must not know
//! where events come from.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use baton_proto::v1;
use baton_proto::v1::generate_response::Event;
use futures::Stream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Status;

use crate::error::RequestError;

/// Tokens that are merged into one event, at most, so that it stays far below the limit of a message also
/// with log-probabilities.
const MAX_MERGED_TOKENS: usize = 512;
/// Tokens kept for a client that is behind, at most; the write deadline usually comes first.
const MAX_PENDING_TOKENS: usize = 1 << 14;

/// The sending end, owned by the request's task.
#[derive(Debug)]
pub(crate) struct Outbox {
    sender: mpsc::Sender<v1::GenerateResponse>,
    end: Arc<OnceLock<Status>>,
    /// What the channel had no room for.
    pending: VecDeque<Event>,
    pending_tokens: usize,
    /// When the client last took something while it was behind.
    behind_since: Instant,
    write_deadline: Duration,
}

/// What the client's call returns.
#[derive(Debug)]
pub(crate) struct ResponseStream {
    receiver: mpsc::Receiver<v1::GenerateResponse>,
    end: Arc<OnceLock<Status>>,
    ended: bool,
    task: Option<JoinHandle<()>>,
}

/// Both ends. The stream aborts the task given by [`ResponseStream::owning`] when it is dropped.
pub(crate) fn outbox(events: usize, write_deadline: Duration) -> (Outbox, ResponseStream) {
    let (sender, receiver) = mpsc::channel(events);
    let end = Arc::new(OnceLock::new());
    let outbox = Outbox {
        sender,
        end: Arc::clone(&end),
        pending: VecDeque::new(),
        pending_tokens: 0,
        behind_since: Instant::now(),
        write_deadline,
    };
    (
        outbox,
        ResponseStream {
            receiver,
            end,
            ended: false,
            task: None,
        },
    )
}

impl Outbox {
    /// Sends, or keeps for [`Outbox::watch`] to send.
    pub(crate) fn push(&mut self, event: Event) {
        if self.pending.is_empty() {
            match self.sender.try_send(response(event)) {
                Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => return,
                Err(mpsc::error::TrySendError::Full(back)) => {
                    self.behind_since = Instant::now();
                    self.pending.extend(back.event);
                }
            }
        } else {
            self.keep(event);
        }
        self.pending_tokens = self.pending.iter().map(tokens).sum();
    }

    /// Keeps an event; tokens that follow those kept last become one event with them.
    fn keep(&mut self, event: Event) {
        match (self.pending.back_mut(), event) {
            (Some(Event::Token(last)), Event::Token(next)) if follows(last, &next) => {
                last.token_ids.extend(next.token_ids);
                last.text.push_str(&next.text);
                last.logprobs.extend(next.logprobs);
            }
            (_, event) => self.pending.push_back(event),
        }
    }

    /// Whether the client has not taken everything.
    pub(crate) fn is_behind(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Sends what is pending and watches the client; returns only when it is gone or too slow.
    /// Cancel-safe.
    pub(crate) async fn watch(&mut self) -> RequestError {
        if let Err(error) = self.flush().await {
            return error;
        }
        self.sender.closed().await;
        RequestError::ClientGone
    }

    /// Sends what is pending. Cancel-safe.
    pub(crate) async fn flush(&mut self) -> Result<(), RequestError> {
        while !self.pending.is_empty() {
            if self.pending_tokens > MAX_PENDING_TOKENS {
                return Err(RequestError::SlowReader(self.behind_since.elapsed()));
            }
            let until = self.behind_since + self.write_deadline;
            match tokio::time::timeout_at(until, self.sender.reserve()).await {
                Ok(Ok(place)) => {
                    if let Some(event) = self.pending.pop_front() {
                        self.pending_tokens -= tokens(&event).min(self.pending_tokens);
                        place.send(response(event));
                    }
                    self.behind_since = Instant::now();
                }
                Ok(Err(_)) => return Err(RequestError::ClientGone),
                Err(_) => return Err(RequestError::SlowReader(self.write_deadline)),
            }
        }
        Ok(())
    }

    /// Ends the stream with a status, after what has been sent already.
    pub(crate) fn fail(self, status: Status) {
        // Set once: the outbox is consumed.
        let _ = self.end.set(status);
    }
}

fn response(event: Event) -> v1::GenerateResponse {
    v1::GenerateResponse { event: Some(event) }
}

fn tokens(event: &Event) -> usize {
    match event {
        Event::Token(token) => token.token_ids.len(),
        Event::Prompt(prompt) => prompt.token_ids.len(),
        Event::Finished(_) | Event::Done(_) => 0,
    }
}

fn follows(last: &v1::TokenEvent, next: &v1::TokenEvent) -> bool {
    last.token_ids.len() + next.token_ids.len() <= MAX_MERGED_TOKENS
        && last.choice == next.choice
        && last.position as usize + last.token_ids.len() == next.position as usize
}

impl ResponseStream {
    /// Ties the task's life to the stream's.
    pub(crate) fn owning(mut self, task: JoinHandle<()>) -> Self {
        self.task = Some(task);
        self
    }

    fn next_item(
        &mut self,
        next: Option<v1::GenerateResponse>,
    ) -> Option<Result<v1::GenerateResponse, Status>> {
        match next {
            Some(response) => {
                self.ended = matches!(response.event, Some(Event::Done(_)));
                Some(Ok(response))
            }
            None if self.ended => None,
            None => {
                self.ended = true;
                let internal = || RequestError::Internal.into();
                Some(Err(self.end.get().cloned().unwrap_or_else(internal)))
            }
        }
    }
}

impl Stream for ResponseStream {
    type Item = Result<v1::GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver
            .poll_recv(context)
            .map(|next| self.next_item(next))
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    fn token(choice: u32, position: u32) -> Event {
        Event::Token(v1::TokenEvent {
            choice,
            token_ids: vec![position],
            text: position.to_string(),
            logprobs: Vec::new(),
            position,
        })
    }

    #[tokio::test]
    async fn str_07_a_client_that_is_behind_gets_merged_events() {
        let (mut outbox, mut stream) = outbox(2, Duration::from_secs(1));
        for position in 0..6 {
            outbox.push(token(0, position));
        }
        outbox.push(token(1, 0));
        assert_eq!(outbox.pending.len(), 2, "{:?}", outbox.pending);
        let reading = async {
            let mut ids = Vec::new();
            while ids.len() < 7 {
                if let Some(Event::Token(event)) = stream.next().await.unwrap().unwrap().event {
                    ids.extend(event.token_ids);
                }
            }
            ids
        };
        let (sent, ids) = tokio::join!(outbox.flush(), reading);
        sent.unwrap();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 0]);
    }

    #[tokio::test]
    async fn str_07_a_client_that_takes_nothing_is_given_up() {
        let write_deadline = Duration::from_millis(50);
        let (mut outbox, _stream) = outbox(1, write_deadline);
        outbox.push(token(0, 0));
        outbox.push(token(0, 1));
        let started = Instant::now();
        assert!(matches!(outbox.watch().await, RequestError::SlowReader(_)));
        assert!(started.elapsed() >= write_deadline);
    }

    #[tokio::test]
    async fn str_07_what_is_kept_is_bounded() {
        let (mut outbox, _stream) = outbox(1, Duration::from_hours(1));
        for position in 0..=(MAX_PENDING_TOKENS as u32 + 1) {
            outbox.push(token(0, position));
        }
        assert!(matches!(outbox.watch().await, RequestError::SlowReader(_)));
    }

    #[tokio::test]
    async fn str_04_an_end_without_done_is_an_error() {
        let (mut sender, mut stream) = outbox(4, Duration::from_secs(1));
        sender.push(token(0, 0));
        drop(sender);
        assert!(stream.next().await.unwrap().is_ok());
        assert_eq!(
            stream.next().await.unwrap().unwrap_err().code(),
            tonic::Code::Internal
        );
        assert!(stream.next().await.is_none());

        let (mut sender, mut stream) = outbox(4, Duration::from_secs(1));
        sender.push(Event::Done(v1::DoneEvent::default()));
        drop(sender);
        assert!(stream.next().await.unwrap().is_ok());
        assert!(stream.next().await.is_none());
    }
}
