//! Values of parameters that are more than a number: read under bounds, before anything grows. It must not
//! know which parameter they are of.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use baton_proto::limits::MAX_STOP_STRINGS;
use baton_sampling::MAX_LOGIT_BIAS;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::schema::Described;

/// Longest text that an error repeats, in characters.
pub(super) const SHOWN: usize = 32;

/// A list that ends, with an error, at its bound.
#[derive(Debug, Default)]
pub(super) struct AtMost<T, const LIMIT: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const LIMIT: usize> Deserialize<'de> for AtMost<T, LIMIT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(List(PhantomData))
    }
}

struct List<T, const LIMIT: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const LIMIT: usize> Visitor<'de> for List<T, LIMIT> {
    type Value = AtMost<T, LIMIT>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            if all.len() == LIMIT {
                return Err(too_many(LIMIT));
            }
            all.push(one);
        }
        Ok(AtMost(all))
    }
}

impl<T: Described, const LIMIT: usize> Described for AtMost<T, LIMIT> {
    fn schema() -> Value {
        json!({"type": "array", "items": T::schema(), "maxItems": LIMIT})
    }
}

/// The error of a list at its bound.
pub(super) fn too_many<E: Error>(limit: usize) -> E {
    E::custom(format!("more than {limit} entries, the limit"))
}

/// One string or a few.
#[derive(Debug, Default)]
pub(super) struct StopStrings(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for StopStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = StopStrings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<StopStrings, E> {
                Ok(StopStrings(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<StopStrings, A::Error> {
                let AtMost(all) = List::<String, MAX_STOP_STRINGS>(PhantomData).visit_seq(list)?;
                Ok(StopStrings(all))
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

impl Described for StopStrings {
    fn schema() -> Value {
        json!({"anyOf": [{"type": "string"}, AtMost::<String, MAX_STOP_STRINGS>::schema()]})
    }
}

/// Keep so many tokens; -1 and 0 keep all.
#[derive(Debug, Clone, Copy)]
pub(super) struct TopK(pub(super) u32);

impl<'de> Deserialize<'de> for TopK {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = i64::deserialize(deserializer)?;
        if given == -1 {
            return Ok(Self(0));
        }
        let wrong = |_| D::Error::invalid_value(Unexpected::Signed(given), &"-1 or at least 0");
        u32::try_from(given).map(Self).map_err(wrong)
    }
}

impl Described for TopK {
    fn schema() -> Value {
        json!({"type": "integer", "minimum": -1})
    }
}

/// Any 64 bits; a negative number stands for the bits of its two's complement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed(pub(super) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bits;
        impl Visitor<'_> for Bits {
            type Value = Seed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer of 64 bits")
            }

            fn visit_u64<E: Error>(self, bits: u64) -> Result<Seed, E> {
                Ok(Seed(bits))
            }

            fn visit_i64<E: Error>(self, bits: i64) -> Result<Seed, E> {
                Ok(Seed(bits as u64))
            }
        }
        deserializer.deserialize_any(Bits)
    }
}

impl Described for Seed {
    fn schema() -> Value {
        json!({"type": "integer"})
    }
}

/// Token ids, as JSON writes keys, to what is added to their logits.
#[derive(Debug, Default)]
pub(super) struct LogitBias(pub(super) BTreeMap<u32, f32>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ById;
        impl<'de> Visitor<'de> for ById {
            type Value = LogitBias;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids and numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
                let mut all = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if all.len() == MAX_LOGIT_BIAS {
                        return Err(too_many(MAX_LOGIT_BIAS));
                    }
                    let digits = key.bytes().all(|byte| byte.is_ascii_digit());
                    let Some(id) = key.parse().ok().filter(|_| digits) else {
                        let shown: String = key.chars().take(SHOWN).collect();
                        return Err(A::Error::custom(format!("{shown:?} is not a token id")));
                    };
                    if all.insert(id, map.next_value()?).is_some() {
                        return Err(A::Error::custom(format!("token id {id} is there twice")));
                    }
                }
                Ok(LogitBias(all))
            }
        }
        deserializer.deserialize_map(ById)
    }
}

impl Described for LogitBias {
    fn schema() -> Value {
        json!({
            "type": "object", "maxProperties": MAX_LOGIT_BIAS,
            "additionalProperties": {"type": "number"},
        })
    }
}
