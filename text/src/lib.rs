//! Text on one side, token ids on the other: tokenizer, chat templates, streaming detokenizer and
//! stop strings.
//!
//! Only the router and tools use this crate; workers see token ids. Everything is immutable after
//! [`TextModel::new`] except a [`Detokenizer`], which belongs to one choice. Encoding is plain CPU
//! work that may take milliseconds per 100 kB: call it off the async threads.
//!
//! It must not know of requests, workers or the wire.

#![forbid(unsafe_code)]

mod added;
mod byte_level;
mod chat;
mod date;
mod detokenizer;
mod digest;
mod error;
mod gguf;
mod hugging_face;
mod marks;
mod model;
mod pipeline;
mod stop;
mod template;
mod utf8;
mod vocabulary;
mod words;

#[cfg(test)]
mod tests;

pub use chat::{ChatMessage, MAX_MESSAGES, ROLES};
pub use detokenizer::{Delta, Detokenizer};
pub use error::TextError;
pub use hugging_face::MAX_TOKENIZER_JSON_BYTES;
pub use model::{MAX_TEXT_BYTES, TextModel};
pub use stop::{MAX_STOP_BYTES, MAX_STOPS};
pub use template::MAX_TEMPLATE_BYTES;
