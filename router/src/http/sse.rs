//! An answer piece by piece, as server-sent events. `[DONE]` comes after a real end alone; a failure is told
//! in its place. It must not know connections: dropping the body drops the events, which cancels.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use serde::Serialize;
use tonic::Status;

use super::collect::text_head;
use super::error::HttpError;
use super::events::{Events, Item};
use super::generate::{Shape, Streamed};
use super::logprobs::{chat, text};
use super::pieces::{Piece, Pieces};
use super::replies::{ChatChunk, ChatDelta, Delta, TextChoice, UsageSoFar};
use crate::error::RequestError;

/// Bytes after which what is there is written, whatever else is there already.
const WRITE_BYTES: usize = 16 << 10;
/// After the last event of an answer that has reached its end.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// A body that is written as events come.
pub(super) fn body(events: Events, pieces: Pieces) -> Body {
    let begun = vec![Choice::default(); pieces.choices()];
    let stream = Stream {
        events,
        pieces,
        choices: begun,
        ended: false,
    };
    Body::from_stream(futures::stream::unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<_, Infallible>(bytes), stream))
    }))
}

/// What has been written of a choice.
#[derive(Debug, Clone, Default)]
struct Choice {
    begun: bool,
    /// Characters before the next token.
    offset: u32,
}

struct Stream {
    events: Events,
    pieces: Pieces,
    choices: Vec<Choice>,
    ended: bool,
}

impl Stream {
    /// The next bytes: an event, and all that are there after it.
    async fn next(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        while !self.ended && out.len() < WRITE_BYTES {
            let item = match self.events.now() {
                Some(item) => Some(item),
                None if !out.is_empty() => break,
                None => self.events.next().await,
            };
            self.write(item, &mut out);
        }
        (!out.is_empty()).then(|| out.into())
    }

    fn write(&mut self, item: Option<Item>, out: &mut Vec<u8>) {
        match item {
            Some(Ok((prompt, event))) => {
                if let Some(piece) = self.pieces.take(prompt, event) {
                    self.write_piece(piece, out);
                }
            }
            Some(Err(status)) => self.fail(status, out),
            None if self.pieces.is_complete() => {
                self.write_end(out);
                self.ended = true;
            }
            None => self.fail(RequestError::Internal.into(), out),
        }
    }

    fn fail(&mut self, status: Status, out: &mut Vec<u8>) {
        event(&HttpError::from(status).reply(), out);
        self.ended = true;
    }

    fn write_piece(&mut self, piece: Piece, out: &mut Vec<u8>) {
        let reply = &self.pieces.head.reply;
        let Streamed { usage, everywhere } = reply.stream.unwrap_or_default();
        let usage = (usage || everywhere).then(|| everywhere.then(|| self.pieces.usage()));
        let (shape, told) = (reply.shape, reply.logprobs && piece.finish.is_none());
        let Some(choice) = self.choices.get_mut(piece.index) else {
            return;
        };
        let index = piece.index as u32;
        match shape {
            Shape::Chat => {
                let first = !std::mem::replace(&mut choice.begun, true);
                let delta = ChatDelta {
                    index,
                    delta: Delta {
                        role: first.then_some("assistant"),
                        content: (piece.finish.is_none() || first).then_some(piece.text),
                    },
                    logprobs: told.then(|| chat(piece.tokens)),
                    finish_reason: piece.finish,
                };
                event(&self.chat_chunk(vec![delta], usage), out);
            }
            Shape::Text => {
                let choice = TextChoice {
                    index,
                    text: piece.text,
                    logprobs: told.then(|| text(piece.tokens, &mut choice.offset)),
                    finish_reason: piece.finish,
                };
                let mut chunk = text_head(&self.pieces.head, vec![choice]);
                chunk.usage = usage;
                event(&chunk, out);
            }
        }
    }

    /// Usage and receipts, if the client wants them, and the end.
    fn write_end(&self, out: &mut Vec<u8>) {
        let reply = &self.pieces.head.reply;
        let usage = (reply.stream.is_some_and(|streamed| streamed.usage))
            .then(|| Some(self.pieces.usage()));
        let receipts = self.pieces.receipts();
        if usage.is_some() || receipts.is_some() {
            match reply.shape {
                Shape::Chat => {
                    let mut chunk = self.chat_chunk(Vec::new(), usage);
                    chunk.receipts = receipts;
                    event(&chunk, out);
                }
                Shape::Text => {
                    let mut chunk = text_head(&self.pieces.head, Vec::new());
                    (chunk.usage, chunk.receipts) = (usage, receipts);
                    event(&chunk, out);
                }
            }
        }
        out.extend_from_slice(DONE);
    }

    fn chat_chunk(&self, choices: Vec<ChatDelta>, usage: Option<UsageSoFar>) -> ChatChunk {
        let head = &self.pieces.head;
        ChatChunk {
            id: head.id.clone(),
            object: "chat.completion.chunk",
            created: head.created,
            model: head.model.clone(),
            choices,
            usage,
            receipts: None,
        }
    }
}

/// Writes one event.
fn event(value: &impl Serialize, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(b"data: ");
    if serde_json::to_writer(&mut *out, value).is_err() {
        // Writing to memory cannot fail, and these types have no keys but strings.
        out.truncate(begin);
        return;
    }
    out.extend_from_slice(b"\n\n");
}
