//! GGUF: metadata, tensor table and their meaning. The parsed header is a validated type; nothing
//! after [`header`] checks a length again.
//!
//! It must not know Hugging Face files or how weights are packed for execution.

mod config;
mod cursor;
mod header;
mod keys;
mod names;
mod rope;
mod text;
mod value;

pub use header::{GgufHeader, parse_gguf_header};

pub(crate) use config::config;
pub(crate) use header::read;
pub(crate) use names::native;
pub(crate) use text::text;
