//! What commands write: results to standard output, remarks to standard error. It must not know what they say.

use std::fmt::Display;
use std::io::Write;

use crate::args::Format;
use crate::exit::Failure;

/// Writes a result. Whoever reads it may have had enough (`| head -1`): then the command ends quietly.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => Failure::failed(format!("cannot write the output: {error}")),
    })
}

/// Writes a result as one line of JSON, or as text, which is the default.
pub(crate) fn in_format<J: Display>(
    format: Option<Format>,
    json: impl FnOnce() -> J,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    result(&match format.unwrap_or(Format::Text) {
        Format::Json => format!("{}\n", json()),
        Format::Text => text(),
    })
}

/// Writes a remark, if anybody reads it.
pub(crate) fn remark(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
