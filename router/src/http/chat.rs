//! `/v1/chat/completions`: what a client may say, and the request it means. It must not know answers.

use std::fmt;

use baton_proto::v1;
use baton_proto::v1::generate_request::Input;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::error::HttpError;
use super::fields::{Nested, Only, request};
use super::generate::{Asked, Common, Shape};
use super::routes::Generates;
use super::schema::Described;
use super::values::AtMost;

/// Most messages that are read.
const MESSAGES: usize = baton_text::MAX_MESSAGES;
/// Most parts of one message.
const MAX_PARTS: usize = 1024;
/// What stands between the parts of a message.
const BETWEEN_PARTS: &str = "\n";

request! {
    /// A chat to go on with.
    struct ChatRequest with common: Common {
        /// The conversation so far.
        messages: AtMost<Nested<Message>, MESSAGES>,
        /// Most completion tokens per choice, another name of `max_tokens`.
        max_completion_tokens: u32,
        /// Whether log-probabilities are told.
        logprobs: bool,
        /// Of how many of the most likely tokens, 0 to 20; needs `logprobs`.
        top_logprobs: u32,
    }
    const IGNORED: &'static [&'static str] = Common::IGNORED;
    const ONLY: &'static [&'static [Only]] = &[
        Common::ONLY,
        &[
            Only("tools", &["[]"]),
            Only("tool_choice", &["\"none\"", "\"auto\""]),
            Only("parallel_tool_calls", &["true", "false"]),
            Only("functions", &["[]"]),
            Only("function_call", &["\"none\"", "\"auto\""]),
            Only("modalities", &["[\"text\"]"]),
            Only("audio", &[]),
            Only("prediction", &[]),
            Only("reasoning_effort", &[]),
            Only("verbosity", &[]),
            Only("web_search_options", &[]),
            Only("best_of", &["1"]),
            Only("echo", &["false"]),
            Only("add_generation_prompt", &["true"]),
            Only("continue_final_message", &["false"]),
            Only("add_special_tokens", &["false"]),
            Only("chat_template", &[]),
            Only("chat_template_kwargs", &["{}"]),
        ],
    ];
}

request! {
    /// One turn of a chat.
    struct Message {
        /// `system` (also spelled `developer`), `user`, `assistant` or `tool`.
        role: String,
        /// What was said: text, or a list of parts of text, which are joined by line breaks.
        content: Content,
    }
    const IGNORED: &'static [&'static str] = &["name"];
    const ONLY: &'static [&'static [Only]] = &[&[
        Only("tool_calls", &["[]"]),
        Only("tool_call_id", &[]),
        Only("function_call", &[]),
        Only("refusal", &[]),
        Only("audio", &[]),
        Only("annotations", &["[]"]),
    ]];
}

request! {
    /// A part of a message.
    struct Part {
        /// The text.
        text: String,
    }
    const ONLY: &'static [&'static [Only]] = &[&[Only("type", &["\"text\""])]];
}

/// Text of a message.
#[derive(Debug, Default)]
pub(super) struct Content(String);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;
        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of parts of text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Content, E> {
                Ok(Content(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let mut texts = Vec::new();
                while let Some(Nested(part)) = parts.next_element::<Nested<Part>>()? {
                    if texts.len() == MAX_PARTS {
                        let words = format!("more than {MAX_PARTS} parts, the limit");
                        return Err(A::Error::custom(words));
                    }
                    let missing = || A::Error::custom("a part without text");
                    texts.push(part.text.ok_or_else(missing)?);
                }
                Ok(Content(texts.join(BETWEEN_PARTS)))
            }
        }
        deserializer.deserialize_any(TextOrParts)
    }
}

impl Described for Content {
    fn schema() -> Value {
        let part = <Nested<Part> as Described>::schema();
        json!({"anyOf": [
            {"type": "string"},
            {"type": "array", "items": part, "maxItems": MAX_PARTS},
        ]})
    }
}

/// The messages of a chat as the pipeline takes them.
pub(super) fn chat_input(
    messages: Option<AtMost<Nested<Message>, MESSAGES>>,
) -> Result<v1::ChatInput, HttpError> {
    let wrong = |words: String| HttpError::invalid(Some("messages"), words);
    let AtMost(messages) = messages.unwrap_or_default();
    if messages.is_empty() {
        return Err(wrong("messages: at least one is needed".to_owned()));
    }
    let mut all = Vec::with_capacity(messages.len());
    for (at, Nested(message)) in messages.into_iter().enumerate() {
        let missing = |field: &str| wrong(format!("messages[{at}].{field} is missing"));
        let Content(content) = message.content.ok_or_else(|| missing("content"))?;
        let mut role = message.role.ok_or_else(|| missing("role"))?;
        // Newer clients' word for it; templates know the older one.
        if role == "developer" {
            "system".clone_into(&mut role);
        }
        all.push(v1::ChatMessage { role, content });
    }
    Ok(v1::ChatInput { messages: all })
}

impl Generates for ChatRequest {
    fn asked(self) -> Result<Asked, HttpError> {
        let logprobs = match (self.logprobs, self.top_logprobs) {
            (Some(true), top) => Some(top.unwrap_or(0)),
            (_, None) => None,
            (_, Some(_)) => {
                return Err(HttpError::invalid(
                    Some("top_logprobs"),
                    "top_logprobs needs logprobs: true",
                ));
            }
        };
        let max_tokens = match (self.common.max_tokens, self.max_completion_tokens) {
            (Some(one), Some(other)) if one != other => {
                return Err(HttpError::invalid(
                    Some("max_completion_tokens"),
                    format!(
                        "max_tokens is {one} and max_completion_tokens is {other}: give one of them"
                    ),
                ));
            }
            (one, other) => one.or(other),
        };
        let input = Input::Chat(chat_input(self.messages)?);
        let mut asked = self.common.asked(Shape::Chat, vec![input])?;
        asked.set_logprobs(logprobs)?;
        asked.sampling.max_tokens = max_tokens;
        Ok(asked)
    }
}
