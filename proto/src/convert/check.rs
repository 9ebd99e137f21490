//! The checks that conversions share. Each names the field it refuses.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::error::ConvertError;

/// Longest value that an error repeats, in characters.
const SHOWN: usize = 64;

/// A refused value; free text is escaped and shortened, since it may come from anywhere.
pub(super) fn refused(
    field: &'static str,
    value: impl Display,
    allowed: impl Into<String>,
) -> ConvertError {
    let text = value.to_string();
    let mut shown: String = text
        .chars()
        .take(SHOWN)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    ConvertError::OutOfRange {
        field,
        value: shown,
        allowed: allowed.into(),
    }
}

pub(super) fn present<T>(field: &'static str, value: Option<T>) -> Result<T, ConvertError> {
    value.ok_or(ConvertError::Missing { field })
}

pub(super) fn within<T: PartialOrd + Display + Copy>(
    field: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<T, ConvertError> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(refused(
        field,
        value,
        format!("{} to {}", range.start(), range.end()),
    ))
}

pub(super) fn entries(field: &'static str, got: usize, limit: usize) -> Result<(), ConvertError> {
    length(field, "entries", got, limit)
}

pub(super) fn length(
    field: &'static str,
    unit: &'static str,
    got: usize,
    limit: usize,
) -> Result<(), ConvertError> {
    if got <= limit {
        return Ok(());
    }
    Err(ConvertError::TooLong {
        field,
        unit,
        got,
        limit,
    })
}

/// A byte string of exactly `N` bytes.
pub(super) fn fixed<const N: usize>(
    field: &'static str,
    bytes: &[u8],
) -> Result<[u8; N], ConvertError> {
    let wrong = |_| ConvertError::WrongLength {
        field,
        got: bytes.len(),
        expected: N,
    };
    bytes.try_into().map_err(wrong)
}

/// Text without control characters, at most `limit` bytes.
pub(super) fn text(
    field: &'static str,
    value: String,
    limit: usize,
) -> Result<String, ConvertError> {
    length(field, "bytes", value.len(), limit)?;
    if value.chars().any(char::is_control) {
        return Err(refused(field, value, "text without control characters"));
    }
    Ok(value)
}

/// Text of [`text`] that is not empty.
pub(super) fn name(
    field: &'static str,
    value: String,
    limit: usize,
) -> Result<String, ConvertError> {
    if value.is_empty() {
        return Err(ConvertError::Missing { field });
    }
    text(field, value, limit)
}

/// Free text of a peer, shortened to `limit` bytes rather than refused.
pub(super) fn shortened(mut value: String, limit: usize) -> String {
    if value.len() > limit {
        value.truncate(value.floor_char_boundary(limit));
    }
    value
}
