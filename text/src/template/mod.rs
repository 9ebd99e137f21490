//! Chat templates as Hugging Face writes them, rendered under limits.
//!
//! Jinja with `trim_blocks`, `lstrip_blocks`, Python's string and list methods, `raise_exception`,
//! `strftime_now` and a `tojson` that escapes nothing. Fuel bounds the steps of a rendering and the
//! memory of what it makes (one unit pays for an instruction or for 64 bytes), but is paid after the
//! work; that single steps stay small, and all of them short, is [`metered`]'s and [`limits`]'s.
//! Must not know of tokens.

mod json;
mod limits;
mod metered;

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::TextError;
use crate::date::strftime;
use crate::error::excerpt;
use limits::{Excess, Limits};

/// Longest template that is compiled.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Fuel of a rendering, besides what its messages' length adds.
const BASE_FUEL: u64 = 1_000_000;
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
        environment.add_function("raise_exception", raise_exception);
        // Jinja has neither; both make iterators of iterators without end.
        environment.remove_filter("chain");
        environment.remove_filter("zip");
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
        add_limits(&mut environment, &Arc::new(Limits::new(bytes)));
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
            .and_then(|template| metered::render(&environment, &template, context))
            .map_err(|error| typed(&error, fuel))
    }
}

/// What looks at values as they are made, and what could make more text than fuel is asked for.
fn add_limits(environment: &mut Environment<'_>, limits: &Arc<Limits>) {
    let mine = Arc::clone(limits);
    environment.add_filter(metered::PLAIN, move |value: Value| mine.plain(value));
    let mine = Arc::clone(limits);
    environment.add_test(metered::SMALL, move |value: &Value| mine.check(value));
    let mine = Arc::clone(limits);
    environment.add_filter(metered::KEPT, move |value: Value| mine.kept(value));
    let most = limits.most_text();
    environment.add_filter("tojson", move |value: &Value, indent, options| {
        json::tojson(value, indent, options, most)
    });
    let mine = Arc::clone(limits);
    environment.add_filter(
        "format",
        move |text: &str, values: Rest<ValueOrKwargs>| -> Result<String, Error> {
            let values = values.into_values();
            mine.check_format(text, &values)?;
            minijinja::formatting::format(FormatStyle::Printf, text, &values)
        },
    );
    let mine = Arc::clone(limits);
    environment.set_unknown_method_callback(move |state, value, method, values| {
        if method == "format" {
            mine.check_format(value.as_str().unwrap_or_default(), values)?;
        }
        unknown_method_callback(state, value, method, values)
    });
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
        if let Some(Excess { what, limit }) = inner.downcast_ref() {
            return TextError::TemplateExcess {
                what,
                limit: *limit,
            };
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
