//! Chat templates as Hugging Face writes them, rendered under limits.
//!
//! Jinja with `trim_blocks`, `lstrip_blocks`, Python's string and list methods, `raise_exception`,
//! `strftime_now` and a `tojson` that escapes nothing. Fuel bounds both the steps and the memory of a
//! rendering (one unit pays for an instruction or for 64 bytes). Must not know of tokens.

use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;

use crate::TextError;
use crate::date::strftime;
use crate::error::excerpt;

/// Longest template that is compiled.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Fuel of a rendering, besides what its messages' length adds.
const BASE_FUEL: u64 = 500_000;
const NAME: &str = "chat_template";

/// A compiled template.
pub(crate) struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// One message as templates see it.
#[derive(Debug)]
pub(crate) struct TemplateMessage<'a> {
    pub(crate) role: &'a str,
    pub(crate) content: &'a str,
}

impl TemplateMessage<'_> {
    fn value(&self) -> Value {
        Value::from_pairs([("role", self.role), ("content", self.content)])
    }
}

impl Template {
    /// `bos` and `eos`: texts of the special tokens, empty if there are none.
    pub(crate) fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TextError::TooLong {
                what: "the chat template",
                bytes: source.len(),
                limit: MAX_TEMPLATE_BYTES,
            });
        }
        let mut environment = Environment::new();
        let invalid = |error: &Error| TextError::TemplateInvalid {
            detail: describe(error),
        };
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| invalid(&error))?;
        environment.set_syntax(syntax);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| invalid(&error))?;
        Ok(Self {
            environment,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        })
    }

    /// Renders the messages and the opening of the assistant's turn. `now`: seconds since 1970.
    pub(crate) fn render(
        &self,
        messages: &[TemplateMessage<'_>],
        now: u64,
    ) -> Result<String, TextError> {
        let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        let fuel = BASE_FUEL + bytes as u64;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        environment.add_function("strftime_now", move |format: &str| strftime(format, now));
        let context = context! {
            messages => messages.iter().map(TemplateMessage::value).collect::<Value>(),
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            tools => (),
            documents => (),
        };
        environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|error| typed(&error, fuel))
    }
}

/// What a template said with `raise_exception`.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn raise_exception(message: &str) -> Result<Value, Error> {
    let refusal = Refusal(excerpt(message));
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(refusal))
}

fn typed(error: &Error, fuel: u64) -> TextError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Refusal(message)) = inner.downcast_ref() {
            let message = message.clone();
            return TextError::TemplateRefused { message };
        }
        source = inner.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateFuel { fuel };
    }
    TextError::TemplateFailed {
        detail: describe(error),
    }
}

fn describe(error: &Error) -> String {
    const MOST: usize = 300;
    error.to_string().chars().take(MOST).collect()
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`.
#[allow(clippy::needless_pass_by_value)] // The engine's signature.
fn tojson(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    const MAX_INDENT: usize = 16;
    let indent = indent.or(options.get("indent")?);
    // Hugging Face's filter also takes these; none changes what messages look like.
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        options.get::<Option<Value>>(ignored)?;
    }
    options.assert_all_used()?;
    let mut out = Vec::new();
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
    written.map_err(|error| invalid(error.to_string()))?;
    String::from_utf8(out).map_err(|error| invalid(error.to_string()))
}

/// Python's separators: `", "` and `": "`.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
