//! Objects that clients send, each written down once: read field by field, with refusals by name, and
//! described. It must not know what they mean.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::error::HttpError;
use super::glimpse::Glimpse;
use super::schema::Described;

/// Longest name that an error repeats, in characters.
const SHOWN_NAME: usize = 64;

/// A parameter that is known, but taken only with these values (and null): others would change the answer,
/// and are not supported.
#[derive(Debug)]
pub(super) struct Only(pub(super) &'static str, pub(super) &'static [&'static str]);

/// An object that clients send. Every field may be absent or null, which is the same.
pub(super) trait Fields: Default {
    /// Parameters that are taken and do nothing here.
    const IGNORED: &'static [&'static str] = &[];
    /// Parameters that are taken with some values alone, in lists that other objects may share.
    const ONLY: &'static [&'static [Only]] = &[];

    /// Reads the value of a field; false, and nothing is read, if there is none of this name.
    ///
    /// # Errors
    /// The value is not of the field's type.
    fn take<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error>;

    /// Adds the fields' schemas.
    fn describe(properties: &mut Map<String, Value>);
}

/// Declares an object that clients send: a struct of options, read by name.
macro_rules! request {
    (
        $(#[$meta:meta])*
        struct $name:ident $(with $rest:ident: $rest_type:ty)? {
            $($(#[doc = $text:literal])* $field:ident: $type:ty,)*
        }
        $($more:tt)*
    ) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(super) struct $name {
            $($(#[doc = $text])* pub(super) $field: Option<$type>,)*
            $(pub(super) $rest: $rest_type,)?
        }

        impl $crate::http::fields::Fields for $name {
            $($more)*

            fn take<'de, A: serde::de::MapAccess<'de>>(
                &mut self,
                name: &str,
                map: &mut A,
            ) -> Result<bool, A::Error> {
                match name {
                    $(stringify!($field) => self.$field = map.next_value::<Option<$type>>()?,)*
                    _ => {
                        let rest: &[bool] =
                            &[$($crate::http::fields::Fields::take(&mut self.$rest, name, map)?)?];
                        return Ok(rest.contains(&true));
                    }
                }
                Ok(true)
            }

            fn describe(properties: &mut serde_json::Map<String, serde_json::Value>) {
                $({
                    let schema = <Option<$type> as $crate::http::schema::Described>::schema();
                    let schema = $crate::http::schema::with_words(schema, &[$($text),*]);
                    properties.insert(stringify!($field).to_owned(), schema);
                })*
                $(<$rest_type as $crate::http::fields::Fields>::describe(properties);)?
            }
        }
    };
}
pub(super) use request;

/// The schema of an object that clients send.
pub(super) fn request_schema<T: Fields>() -> Value {
    let mut properties = Map::new();
    T::describe(&mut properties);
    for Only(name, values) in T::ONLY.iter().copied().flatten() {
        let mut allowed: Vec<Value> = (values.iter())
            .filter_map(|value| serde_json::from_str(value).ok())
            .collect();
        allowed.push(Value::Null);
        properties.insert((*name).to_owned(), json!({"enum": allowed}));
    }
    for name in T::IGNORED {
        let words = "Taken and ignored.";
        properties.insert((*name).to_owned(), json!({"description": words}));
    }
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// Reads an object of the API from a whole body.
pub(super) fn parse<T: Fields>(body: &[u8]) -> Result<T, HttpError> {
    let mut reading = None;
    let mut json = serde_json::Deserializer::from_slice(body);
    let object = Object {
        reading: &mut reading,
        kind: PhantomData,
    };
    let parsed = object
        .deserialize(&mut json)
        .and_then(|value| json.end().map(|()| value));
    parsed.map_err(|error| match &reading {
        Some(name) => HttpError::invalid(Some(name), format!("{name}: {error}")),
        None => HttpError::invalid(None, format!("the body is not a JSON object: {error}")),
    })
}

struct Object<'a, T> {
    /// The field that is being read.
    reading: &'a mut Option<String>,
    kind: PhantomData<T>,
}

impl<'de, T: Fields> DeserializeSeed<'de> for Object<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Fields> Visitor<'de> for Object<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut value = T::default();
        // Bounded: a name that is not known ends it.
        let mut seen = Vec::<String>::new();
        while let Some(name) = map.next_key::<String>()? {
            *self.reading = Some(name.chars().take(SHOWN_NAME).collect());
            if seen.contains(&name) {
                return Err(A::Error::custom("is there twice"));
            }
            if !value.take(&name, &mut map)? {
                take_aside::<T, A>(&name, &mut map)?;
            }
            seen.push(name);
            *self.reading = None;
        }
        Ok(value)
    }
}

/// Takes a parameter that has no field: one that does nothing, or has a value that asks for nothing.
fn take_aside<'de, T: Fields, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<(), A::Error> {
    if T::IGNORED.contains(&name) {
        map.next_value::<IgnoredAny>()?;
        return Ok(());
    }
    let mut known = T::ONLY.iter().copied().flatten();
    let Some(Only(_, values)) = known.find(|only| only.0 == name) else {
        return Err(A::Error::custom("there is no such parameter here"));
    };
    let given = map.next_value::<Glimpse>()?.0;
    if given == "null" || values.contains(&given.as_str()) {
        return Ok(());
    }
    let allowed = match values {
        [] => "leave it out".to_owned(),
        _ => format!("allowed: {}", values.join(", ")),
    };
    Err(A::Error::custom(format!(
        "{given} is not supported; {allowed}"
    )))
}

/// Reads an object of the API inside another one.
pub(super) fn nested<'de, T: Fields, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let mut reading = None;
    let object = Object {
        reading: &mut reading,
        kind: PhantomData,
    };
    let result = object.deserialize(deserializer);
    result.map_err(|error| match &reading {
        Some(name) => D::Error::custom(format!("{name}: {error}")),
        None => error,
    })
}

/// An object that is only ever a part of others.
#[derive(Debug, Default)]
pub(super) struct Nested<T>(pub(super) T);

impl<'de, T: Fields> Deserialize<'de> for Nested<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        nested(deserializer).map(Self)
    }
}

impl<T: Fields> Described for Nested<T> {
    fn schema() -> Value {
        request_schema::<T>()
    }
}
