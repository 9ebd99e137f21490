//! Values of GGUF metadata and typed access to them by key.
//!
//! It must not know which keys a model needs.

use std::collections::BTreeMap;
use std::io::Read;

use super::cursor::{Cursor, malformed};
use crate::FileError;

/// Longest string value: chat templates are the longest that occur, at tens of kilobytes.
const MAX_STRING_BYTES: u64 = 4 << 20;
/// Most elements of all arrays of a file together; the largest vocabularies need 1.5 million.
const MAX_ELEMENTS: u64 = 1 << 22;
/// Arrays grow from at most this many elements, whatever length they declare.
const FIRST_CAPACITY: u64 = 1 << 12;

/// One metadata value. Integers keep their declared type where the format demands it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Uint32(u32),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    Integers(Vec<i64>),
    Floats(Vec<f32>),
}

/// Metadata of a file, by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Metadata {
    values: BTreeMap<String, Value>,
    elements: u64,
}

impl Metadata {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.values.remove(key)
    }

    /// Reads the value that belongs to `key`, whose own bytes start at `at`.
    pub(super) fn read<R: Read>(
        &mut self,
        cursor: &mut Cursor<R>,
        key: String,
        at: u64,
    ) -> Result<(), FileError> {
        let offset = cursor.offset();
        let kind = cursor.u32(&format!("value type of {key:?}"))?;
        let what = format!("value of {key:?}");
        let value = match kind {
            8 => Value::String(cursor.string(MAX_STRING_BYTES, &what)?),
            9 => self.array(cursor, &key)?,
            _ => scalar(cursor, kind, &what, offset)?,
        };
        if self.values.contains_key(&key) {
            return Err(malformed(&format!("key {key:?}"), at, "occurs twice"));
        }
        self.values.insert(key, value);
        Ok(())
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&str>, FileError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong(key, "a string")),
        }
    }

    /// A non-negative integer of any width.
    pub(super) fn count(&self, key: &str) -> Result<Option<u64>, FileError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Uint32(value)) => Ok(Some(u64::from(*value))),
            Some(Value::Unsigned(value)) => Ok(Some(*value)),
            Some(Value::Signed(value)) => u64::try_from(*value)
                .map(Some)
                .map_err(|_| FileError::out_of_range(key, value, "0 and above")),
            Some(_) => Err(wrong(key, "an integer")),
        }
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f32>, FileError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(value)) => Ok(Some(*value as f32)),
            Some(_) => Err(wrong(key, "a float")),
        }
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, FileError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(wrong(key, "a bool")),
        }
    }

    fn array<R: Read>(&mut self, cursor: &mut Cursor<R>, key: &str) -> Result<Value, FileError> {
        let what = format!("array {key:?}");
        let offset = cursor.offset();
        let kind = cursor.u32(&what)?;
        let count = cursor.u64(&what)?;
        let size = match kind {
            9 => return Err(malformed(&what, offset, "nested arrays are not supported")),
            8 => 8,
            _ => scalar_bytes(kind).ok_or_else(|| unknown(&what, offset, kind))?,
        };
        cursor.expect(count, size, &what)?;
        if count > MAX_ELEMENTS - self.elements {
            return Err(FileError::Limit {
                what: format!("number of elements of {what}, with all arrays before,"),
                offset,
                value: self.elements.saturating_add(count),
                limit: MAX_ELEMENTS,
            });
        }
        self.elements += count;
        let capacity = count.min(FIRST_CAPACITY) as usize;
        if kind == 8 {
            let mut strings = Vec::with_capacity(capacity);
            for _ in 0..count {
                strings.push(cursor.string(MAX_STRING_BYTES, &what)?);
            }
            return Ok(Value::Strings(strings));
        }
        let (mut integers, mut floats) = (Vec::new(), Vec::new());
        for _ in 0..count {
            match scalar(cursor, kind, &what, offset)? {
                Value::Uint32(value) => integers.push(i64::from(value)),
                Value::Signed(value) => integers.push(value),
                Value::Bool(value) => integers.push(i64::from(value)),
                Value::Float(value) => floats.push(value as f32),
                Value::Unsigned(value) => integers.push(
                    i64::try_from(value)
                        .map_err(|_| FileError::out_of_range(key, value, "64-bit signed"))?,
                ),
                Value::String(_) | Value::Strings(_) | Value::Integers(_) | Value::Floats(_) => {
                    return Err(unknown(&what, offset, kind));
                }
            }
        }
        let is_float = kind == 6 || kind == 12;
        Ok(if is_float {
            Value::Floats(floats)
        } else {
            Value::Integers(integers)
        })
    }
}

fn scalar_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn scalar<R: Read>(
    cursor: &mut Cursor<R>,
    kind: u32,
    what: &str,
    offset: u64,
) -> Result<Value, FileError> {
    Ok(match kind {
        0 => Value::Unsigned(u64::from(u8::from_le_bytes(cursor.array(what)?))),
        1 => Value::Signed(i64::from(i8::from_le_bytes(cursor.array(what)?))),
        2 => Value::Unsigned(u64::from(u16::from_le_bytes(cursor.array(what)?))),
        3 => Value::Signed(i64::from(i16::from_le_bytes(cursor.array(what)?))),
        4 => Value::Uint32(cursor.u32(what)?),
        5 => Value::Signed(i64::from(i32::from_le_bytes(cursor.array(what)?))),
        6 => Value::Float(f64::from(f32::from_le_bytes(cursor.array(what)?))),
        7 => match cursor.array::<1>(what)?[0] {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            other => {
                return Err(malformed(
                    what,
                    offset,
                    format!("bool is {other}, not 0 or 1"),
                ));
            }
        },
        10 => Value::Unsigned(cursor.u64(what)?),
        11 => Value::Signed(i64::from_le_bytes(cursor.array(what)?)),
        12 => Value::Float(f64::from_le_bytes(cursor.array(what)?)),
        _ => return Err(unknown(what, offset, kind)),
    })
}

fn unknown(what: &str, offset: u64, kind: u32) -> FileError {
    malformed(what, offset, format!("value type {kind} is unknown"))
}

pub(super) fn wrong(key: &str, expected: &'static str) -> FileError {
    FileError::WrongType {
        key: key.into(),
        expected,
    }
}
