//! Templates' `tojson`, which escapes nothing, into a text of bounded length.
//!
//! Must not know of chats.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;

use super::limits::Excess;

/// Most spaces of one level of indentation.
const MAX_INDENT: usize = 16;

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`, at most `most` bytes long.
#[allow(clippy::needless_pass_by_value)] // The engine's signature.
pub(super) fn tojson(
    value: &Value,
    indent: Option<usize>,
    options: Kwargs,
    most: u64,
) -> Result<String, Error> {
    let indent = indent.or(options.get("indent")?);
    // Hugging Face's filter also takes these; none changes what messages look like.
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        options.get::<Option<Value>>(ignored)?;
    }
    options.assert_all_used()?;
    let mut out = Bounded {
        text: Vec::new(),
        most: usize::try_from(most).unwrap_or(usize::MAX),
    };
    let written = match indent {
        None => value.serialize(&mut serde_json::Serializer::with_formatter(
            &mut out, Spaced,
        )),
        Some(width) => {
            let spaces = " ".repeat(width.min(MAX_INDENT));
            let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(
                &mut out, pretty,
            ))
        }
    };
    let invalid = |error: String| Error::new(ErrorKind::InvalidOperation, error);
    written.map_err(|error| {
        if error.is_io() {
            Excess::text(most).into()
        } else {
            invalid(error.to_string())
        }
    })?;
    String::from_utf8(out.text).map_err(|error| invalid(error.to_string()))
}

/// A text that takes no more than `most` bytes.
struct Bounded {
    text: Vec<u8>,
    most: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.text.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Python's separators: `", "` and `": "`.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
