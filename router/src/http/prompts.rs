//! Prompts of a text completion, as clients write them. It must not know what is done with them.

use std::fmt;

use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::schema::Described;
use super::values::too_many;

/// Most prompts of one request.
const MAX_PROMPTS: usize = 128;

/// One prompt of a text completion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// Text, ids, or a list of one kind of them.
#[derive(Debug, Default)]
pub(super) struct Prompts(pub(super) Vec<Prompt>);

/// An element of a prompt's list.
enum Element {
    Prompt(Prompt),
    Id(u32),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text.to_owned())))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                let wrong = |_| E::invalid_value(Unexpected::Unsigned(id), &"a token id");
                u32::try_from(id).map(Element::Id).map_err(wrong)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = list.next_element()? {
                    ids.push(id);
                }
                Ok(Element::Prompt(Prompt::Ids(ids)))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Prompts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a string, a list of strings, a list of token ids, or a list of such lists",
                )
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
                let (mut prompts, mut ids) = (Vec::new(), Vec::new());
                while let Some(element) = list.next_element()? {
                    match element {
                        Element::Id(id) if prompts.is_empty() => ids.push(id),
                        Element::Prompt(_) if prompts.len() == MAX_PROMPTS => {
                            return Err(too_many(MAX_PROMPTS));
                        }
                        Element::Prompt(prompt) if ids.is_empty() => prompts.push(prompt),
                        _ => return Err(A::Error::custom("token ids and prompts in one list")),
                    }
                }
                if !ids.is_empty() {
                    prompts.push(Prompt::Ids(ids));
                }
                Ok(Prompts(prompts))
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

impl Described for Prompts {
    fn schema() -> Value {
        let ids = json!({"type": "array", "items": {"type": "integer", "minimum": 0}});
        json!({"anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "maxItems": MAX_PROMPTS},
            ids,
            {"type": "array", "items": ids, "maxItems": MAX_PROMPTS},
        ]})
    }
}
