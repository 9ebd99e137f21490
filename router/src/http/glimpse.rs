//! A look at values that are not wanted, to tell the harmless ones. It must not know which those are.

use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::json;

use super::values::SHOWN;

/// Any value, looked at just enough to tell whether it is one of a few small ones: JSON of values without
/// depth, `…` in the place of what is inside others.
pub(super) struct Glimpse(pub(super) String);

impl<'de> Deserialize<'de> for Glimpse {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Glimpse;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: Error>(self) -> Result<Glimpse, E> {
                Ok(Glimpse("null".to_owned()))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Glimpse, E> {
                Ok(Glimpse(value.to_string()))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Glimpse, E> {
                Ok(Glimpse(value.to_string()))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Glimpse, E> {
                Ok(Glimpse(value.to_string()))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Glimpse, E> {
                Ok(Glimpse(value.to_string()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Glimpse, E> {
                let shown: String = text.chars().take(SHOWN).collect();
                Ok(Glimpse(json!(shown).to_string()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Glimpse, A::Error> {
                let Some(Glimpse(first)) = list.next_element()? else {
                    return Ok(Glimpse("[]".to_owned()));
                };
                let mut more = false;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    more = true;
                }
                let flat = !more && !first.starts_with(['[', '{']);
                Ok(Glimpse(if flat {
                    format!("[{first}]")
                } else {
                    "[…]".to_owned()
                }))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Glimpse, A::Error> {
                let Some((Glimpse(key), Glimpse(first))) = map.next_entry()? else {
                    return Ok(Glimpse("{}".to_owned()));
                };
                let mut more = false;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    more = true;
                }
                let flat = !more && !first.starts_with(['[', '{']);
                Ok(Glimpse(if flat {
                    format!("{{{key}:{first}}}")
                } else {
                    "{…}".to_owned()
                }))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
