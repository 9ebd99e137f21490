//! An answer piece by piece, as server-sent events. `[DONE]` comes after a real end alone; a failure is told
//! in its place. It must not know connections: dropping the body drops the events, which cancels.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use serde::Serialize;

use super::collect::text_head;
use super::error::HttpError;
use super::events::{Events, Item};
use super::generate::{Shape, Streamed};
use super::logprobs::{chat, text};
use super::pieces::{Piece, Pieces};
use super::replies::{ChatChunk, ChatDelta, Delta, TextChoice, TextCompletion, UsageSoFar};
use crate::error::RequestError;

/// Bytes after which what is there is written, whatever else is there already.
const WRITE_BYTES: usize = 16 << 10;
/// Room for a few events.
const FIRST_BYTES: usize = 4 << 10;
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
    /// What stands around the text of pieces that have nothing else to tell.
    around: Option<Around>,
    /// Characters before the next token.
    offset: u32,
}

/// A piece of either kind of answer.
#[derive(Serialize)]
#[serde(untagged)]
enum Chunk {
    Chat(ChatChunk),
    Text(TextCompletion),
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
        let mut out = Vec::with_capacity(FIRST_BYTES);
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
            Some(Ok((prompt, event))) => match self.pieces.take(prompt, event) {
                Ok(Some(piece)) => self.write_piece(piece, out),
                Ok(None) => {}
                Err(error) => self.fail(&error, out),
            },
            Some(Err(status)) => self.fail(&status.into(), out),
            None if self.pieces.is_complete() => {
                self.write_end(out);
                self.ended = true;
            }
            None => self.fail(&RequestError::Internal.into(), out),
        }
    }

    fn fail(&mut self, error: &HttpError, out: &mut Vec<u8>) {
        event(&error.reply(), out);
        self.ended = true;
    }

    fn write_piece(&mut self, piece: Piece, out: &mut Vec<u8>) {
        let Some(choice) = self.choices.get_mut(piece.index) else {
            return;
        };
        let first = !std::mem::replace(&mut choice.begun, true);
        let known = choice.around.take();
        let reply = &self.pieces.head.reply;
        let (field, tells_role) = match reply.shape {
            Shape::Chat => ("content", first),
            Shape::Text => ("text", false),
        };
        let everywhere = reply.stream.is_some_and(|streamed| streamed.everywhere);
        if piece.finish.is_some() || reply.logprobs || everywhere || tells_role {
            event(&self.chunk(piece, first), out);
            return;
        }
        let around = known.or_else(|| {
            let empty = Piece {
                index: piece.index,
                ..Piece::default()
            };
            Around::of(&self.chunk(empty, false), field)
        });
        if let Some(around) = &around {
            around.write(&piece.text, out);
        }
        if let Some(choice) = self.choices.get_mut(piece.index) {
            choice.around = around;
        }
    }

    /// A piece of one choice, whatever it has to tell.
    fn chunk(&mut self, piece: Piece, first: bool) -> Chunk {
        let reply = &self.pieces.head.reply;
        let Streamed { usage, everywhere } = reply.stream.unwrap_or_default();
        let usage = (usage || everywhere).then(|| everywhere.then(|| self.pieces.usage()));
        let (shape, told) = (reply.shape, reply.logprobs && piece.finish.is_none());
        let index = piece.index as u32;
        match shape {
            Shape::Chat => {
                let delta = ChatDelta {
                    index,
                    delta: Delta {
                        role: first.then_some("assistant"),
                        content: (piece.finish.is_none() || first).then_some(piece.text),
                    },
                    logprobs: told.then(|| chat(piece.tokens)),
                    finish_reason: piece.finish,
                };
                Chunk::Chat(self.chat_chunk(vec![delta], usage))
            }
            Shape::Text => {
                let mut nowhere = 0;
                let choice = self.choices.get_mut(piece.index);
                let offset = choice.map_or(&mut nowhere, |choice| &mut choice.offset);
                let choice = TextChoice {
                    index,
                    text: piece.text,
                    logprobs: told.then(|| text(piece.tokens, offset)),
                    finish_reason: piece.finish,
                };
                let mut chunk = text_head(&self.pieces.head, vec![choice]);
                chunk.usage = usage;
                Chunk::Text(chunk)
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

/// An event but for a text in it: pieces of one choice differ in little else.
#[derive(Debug, Clone)]
struct Around {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Around {
    /// Of a value whose `field`, which no other field is called, is an empty text.
    fn of(value: &impl Serialize, field: &str) -> Option<Self> {
        let mut before = Vec::new();
        event(value, &mut before);
        let place = format!("\"{field}\":\"\"");
        // Inside of other texts, quotation marks are escaped.
        let mut windows = before.windows(place.len());
        let text = windows.position(|window| window == place.as_bytes())? + place.len() - 2;
        let after = before.split_off(text + 2);
        before.truncate(text);
        Some(Self { before, after })
    }

    fn write(&self, text: &str, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&self.before);
        if serde_json::to_writer(&mut *out, text).is_err() {
            // Writing to memory cannot fail.
            out.truncate(begin);
            return;
        }
        out.extend_from_slice(&self.after);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(content: &str) -> ChatChunk {
        let delta = ChatDelta {
            index: 3,
            delta: Delta {
                role: None,
                content: Some(content.to_owned()),
            },
            logprobs: None,
            finish_reason: None,
        };
        ChatChunk {
            id: r#""content":"""#.to_owned(),
            object: "chat.completion.chunk",
            created: 1,
            model: "\"content\":\"\" \\".to_owned(),
            choices: vec![delta],
            usage: Some(None),
            receipts: None,
        }
    }

    #[test]
    fn a_piece_is_the_same_written_at_once_and_around_its_text() {
        let around = Around::of(&chunk(""), "content").unwrap();
        for text in [
            "",
            " word",
            "\"",
            "\\",
            "\n\u{0}\u{7f}",
            "日本 é 🙂",
            "\"content\":\"\"",
        ] {
            let (mut at_once, mut in_parts) = (Vec::new(), Vec::new());
            event(&chunk(text), &mut at_once);
            around.write(text, &mut in_parts);
            assert_eq!(String::from_utf8(in_parts), String::from_utf8(at_once));
        }
        assert!(Around::of(&chunk(""), "text").is_none());
    }
}
