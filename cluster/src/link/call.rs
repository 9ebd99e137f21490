//! One call: messages out, messages in, and its end. It must not know connections.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::StatusCode;
use prost::Message;
use tonic::{Code, Status};

use super::connection::failed;
use super::frames::{Frames, frame};

/// A call that has been taken up. Dropping it before its end cancels it.
pub struct Call<Out, In> {
    messages: SendStream<Bytes>,
    answer: RecvStream,
    frames: Frames,
    ended: bool,
    types: PhantomData<fn(Out) -> In>,
}

impl<Out, In> fmt::Debug for Call<Out, In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

impl<Out: Message, In: Message + Default> Call<Out, In> {
    /// Sends the first message and waits until the peer takes the call up.
    pub(super) async fn begin(
        response: ResponseFuture,
        mut messages: SendStream<Bytes>,
        first: &Out,
    ) -> Result<Self, Status> {
        // A call that has ended already says so in its answer.
        let _ = messages.send_data(frame(first), false);
        let response = response.await.map_err(failed)?;
        let (parts, answer) = response.into_parts();
        if parts.status != StatusCode::OK {
            return Err(refused(parts.status));
        }
        // An answer without messages has its status where others have their head.
        match Status::from_header_map(&parts.headers) {
            Some(status) if status.code() != Code::Ok => return Err(status),
            _ => {}
        }
        Ok(Self {
            messages,
            answer,
            frames: Frames::default(),
            ended: false,
            types: PhantomData,
        })
    }

    /// Sends one more message. A call that has ended says so in [`Self::message`]. What the peer does not take is
    /// kept: callers send only so many.
    pub fn send(&mut self, message: &Out) {
        let _ = self.messages.send_data(frame(message), false);
    }

    /// A message that has arrived together with the one before.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn buffered(&mut self) -> Result<Option<In>, Status> {
        self.frames.next()
    }

    /// The next message, or `None` after the last of a call that ended well. Cancel-safe.
    ///
    /// # Errors
    /// How the call ended otherwise; with a source if it is the connection that failed.
    pub async fn message(&mut self) -> Result<Option<In>, Status> {
        if self.ended {
            return Ok(None);
        }
        loop {
            if let Some(message) = self.frames.next()? {
                return Ok(Some(message));
            }
            match self.answer.data().await {
                Some(Ok(bytes)) => {
                    // Fails for calls that have ended only.
                    let _ = self.answer.flow_control().release_capacity(bytes.len());
                    self.frames.add(bytes);
                }
                Some(Err(error)) => return Err(failed(error)),
                None => break,
            }
        }
        let trailers = self.answer.trailers().await.map_err(failed)?;
        self.ended = true;
        let status = trailers.as_ref().and_then(Status::from_header_map);
        let status =
            status.unwrap_or_else(|| Status::internal("the answer ended without a status"));
        if status.code() != Code::Ok {
            return Err(status);
        }
        if !self.frames.is_empty() {
            return Err(Status::internal("the answer ended within a message"));
        }
        // Both sides have ended: nothing is left to cancel.
        let _ = self.messages.send_data(Bytes::new(), true);
        Ok(None)
    }
}

/// What answers is not a service of ours.
fn refused(status: StatusCode) -> Status {
    let words = format!("it answers with HTTP status {status}");
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Status::unavailable(words),
        _ => Status::unknown(words),
    }
}
