//! Types of the API that say what they look like, for `/openapi.json`, and objects that clients get. It must
//! not know what they mean.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A type of the API that can say what it looks like.
pub(super) trait Described {
    /// Its JSON Schema.
    fn schema() -> Value;
    /// Whether it may be left out.
    const OPTIONAL: bool = false;
}

/// Declares an object that clients get.
macro_rules! reply {
    (
        $(#[$meta:meta])*
        struct $name:ident {
            $($(#[doc = $text:literal])* $(#[serde($($serde:tt)*)])? $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, serde::Serialize)]
        pub(super) struct $name {
            $($(#[doc = $text])* $(#[serde($($serde)*)])? pub(super) $field: $type,)*
        }

        impl $crate::http::schema::Described for $name {
            fn schema() -> serde_json::Value {
                let mut properties = serde_json::Map::new();
                let mut required = Vec::<&str>::new();
                $({
                    let name = stringify!($field).trim_start_matches("r#");
                    let schema = <$type as $crate::http::schema::Described>::schema();
                    let schema = $crate::http::schema::with_words(schema, &[$($text),*]);
                    properties.insert(name.to_owned(), schema);
                    if !<$type as $crate::http::schema::Described>::OPTIONAL {
                        required.push(name);
                    }
                })*
                serde_json::json!({"type": "object", "properties": properties, "required": required})
            }
        }
    };
}
pub(super) use reply;

/// A schema with the words of a doc comment.
pub(super) fn with_words(mut schema: Value, lines: &[&str]) -> Value {
    let words: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    if let (Some(object), false) = (schema.as_object_mut(), words.is_empty()) {
        object.insert("description".to_owned(), words.join(" ").into());
    }
    schema
}

macro_rules! described {
    ($($type:ty => $name:literal),* $(,)?) => {$(
        impl Described for $type {
            fn schema() -> Value {
                json!({"type": $name})
            }
        }
    )*};
}

described! {
    bool => "boolean",
    f32 => "number",
    u8 => "integer",
    u32 => "integer",
    u64 => "integer",
    String => "string",
    &'static str => "string",
}

impl<T: Described> Described for Option<T> {
    const OPTIONAL: bool = true;

    fn schema() -> Value {
        let mut schema = T::schema();
        let kind = schema
            .get("type")
            .and_then(Value::as_str)
            .map(str::to_owned);
        match (kind, schema.as_object_mut()) {
            (Some(kind), Some(object)) => {
                object.insert("type".to_owned(), json!([kind, "null"]));
                schema
            }
            _ => json!({"anyOf": [schema, {"type": "null"}]}),
        }
    }
}

impl<T: Described> Described for Vec<T> {
    fn schema() -> Value {
        json!({"type": "array", "items": T::schema()})
    }
}

impl<T: Described> Described for BTreeMap<String, T> {
    fn schema() -> Value {
        json!({"type": "object", "additionalProperties": T::schema()})
    }
}
