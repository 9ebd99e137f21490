//! A JSON object with typed access; errors name file and key.
//!
//! It must not know which keys a model needs.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::{FileError, limits};

/// One JSON file, or an object inside it.
#[derive(Debug)]
pub(super) struct Document {
    name: String,
    object: Map<String, Value>,
}

impl Document {
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        match serde_json::from_str(text) {
            Ok(Value::Object(object)) => Ok(Self {
                name: name.into(),
                object,
            }),
            Ok(_) => Err(FileError::Json("not an object".into())),
            Err(error) => Err(FileError::Json(error.to_string())),
        }
    }

    /// The object at `key`, if there is one and it is not null.
    pub(super) fn child(&self, key: &str) -> Result<Option<Self>, FileError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Self {
                name: self.key(key),
                object: object.clone(),
            })),
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    /// The value at `key`; null counts as absent.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// How errors name a key.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}: {key}", self.name)
    }

    pub(super) fn wrong(&self, key: &str, expected: &'static str) -> FileError {
        FileError::WrongType {
            key: self.key(key),
            expected,
        }
    }

    pub(super) fn missing(&self, key: &str) -> FileError {
        FileError::missing(self.key(key))
    }

    pub(super) fn unsupported(&self, key: &str, value: impl Display) -> FileError {
        FileError::unsupported(self.key(key), value)
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&str>, FileError> {
        self.value(key)
            .map(|value| value.as_str().ok_or_else(|| self.wrong(key, "a string")))
            .transpose()
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, FileError> {
        self.value(key)
            .map(|value| {
                value
                    .as_bool()
                    .ok_or_else(|| self.wrong(key, "true or false"))
            })
            .transpose()
    }

    pub(super) fn optional_size(
        &self,
        key: &str,
        range: &RangeInclusive<u64>,
    ) -> Result<Option<u32>, FileError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(size) => limits::within(&self.key(key), size, range).map(Some),
            None if value.is_number() => {
                let range = format!("the integers {} to {}", range.start(), range.end());
                Err(FileError::out_of_range(self.key(key), value, range))
            }
            None => Err(self.wrong(key, "an integer")),
        }
    }

    pub(super) fn size(&self, key: &str, range: &RangeInclusive<u64>) -> Result<u32, FileError> {
        self.optional_size(key, range)?
            .ok_or_else(|| self.missing(key))
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f32>, FileError> {
        self.value(key)
            .map(|value| {
                value
                    .as_f64()
                    .map(|x| x as f32)
                    .ok_or_else(|| self.wrong(key, "a number"))
            })
            .transpose()
    }

    pub(super) fn positive(&self, key: &str) -> Result<Option<f32>, FileError> {
        self.float(key)?
            .map(|value| limits::positive(&self.key(key), value))
            .transpose()
    }

    /// Fails if a number is stated and it is not the one that changes nothing.
    pub(super) fn refuse_unless(&self, key: &str, neutral: f32) -> Result<(), FileError> {
        match self.float(key)? {
            Some(value) if ![neutral].contains(&value) => Err(self.unsupported(key, value)),
            _ => Ok(()),
        }
    }

    /// A token id below `vocabulary`.
    pub(super) fn token_id(&self, key: &str, vocabulary: u32) -> Result<Option<u32>, FileError> {
        self.optional_size(key, &(0..=u64::from(vocabulary - 1)))
    }

    /// One token id or a list of them.
    pub(super) fn token_ids(&self, key: &str, vocabulary: u32) -> Result<Vec<u32>, FileError> {
        match self.value(key) {
            Some(Value::Array(ids)) if ids.len() > limits::MAX_EOS_IDS => {
                let range = format!("0 to {} ids", limits::MAX_EOS_IDS);
                Err(FileError::out_of_range(self.key(key), ids.len(), range))
            }
            Some(Value::Array(ids)) => ids
                .iter()
                .map(|id| {
                    let id = id
                        .as_u64()
                        .ok_or_else(|| self.wrong(key, "a list of token ids"))?;
                    limits::within(&self.key(key), id, &(0..=u64::from(vocabulary - 1)))
                })
                .collect(),
            _ => Ok(self.token_id(key, vocabulary)?.into_iter().collect()),
        }
    }
}
