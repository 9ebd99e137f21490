//! Limits of a model's shapes: generous for any real model, small enough that no product of them
//! overflows and no table sized by them is large.
//!
//! It must not know file formats; readers name the offending key themselves.

use std::ops::RangeInclusive;

use crate::{FileError, ModelConfig};

pub(crate) const LAYERS: RangeInclusive<u64> = 1..=1024;
pub(crate) const WIDTH: RangeInclusive<u64> = 1..=1 << 18;
pub(crate) const HEADS: RangeInclusive<u64> = 1..=1024;
pub(crate) const HEAD_DIM: RangeInclusive<u64> = 2..=1024;
pub(crate) const VOCABULARY: RangeInclusive<u64> = 1..=1 << 22;
pub(crate) const CONTEXT: RangeInclusive<u64> = 1..=1 << 24;
/// Longest model name taken from a file.
const MAX_NAME_BYTES: usize = 256;
/// Most end-of-sequence ids that one file may state.
pub(crate) const MAX_EOS_IDS: usize = 256;
/// Base of rotary frequencies where the file states none, as in Llama 1 and 2.
pub(crate) const DEFAULT_ROPE_THETA: f32 = 10_000.0;

/// `value`, if `range` holds it.
pub(crate) fn within(key: &str, value: u64, range: &RangeInclusive<u64>) -> Result<u32, FileError> {
    if range.contains(&value) {
        Ok(value as u32)
    } else {
        Err(FileError::out_of_range(
            key,
            value,
            format!("{} to {}", range.start(), range.end()),
        ))
    }
}

/// `value`, if it is finite and positive.
pub(crate) fn positive(key: &str, value: f32) -> Result<f32, FileError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(FileError::out_of_range(
            key,
            value,
            "the finite numbers above 0",
        ))
    }
}

/// `value`, if it can be the epsilon of a norm.
pub(crate) fn epsilon(key: &str, value: f32) -> Result<f32, FileError> {
    if value > 0.0 && value < 1.0 {
        Ok(value)
    } else {
        Err(FileError::out_of_range(
            key,
            value,
            "the numbers between 0 and 1",
        ))
    }
}

/// Whether a name from a file may stand in logs and lists.
pub(crate) fn is_printable(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control)
}

/// Longest sequence that a model with `YaRN` is meant for: its own context length or the extension
/// of the original one, whichever is longer (files state either).
pub(crate) fn yarn_context(
    key: &str,
    stated: u32,
    original: u32,
    factor: f32,
) -> Result<u32, FileError> {
    let extended = f64::from(original) * f64::from(factor);
    within(key, (extended as u64).max(u64::from(stated)), &CONTEXT)
}

/// Relations between sizes that hold for every model.
pub(crate) fn check_relations(config: &ModelConfig) -> Result<(), FileError> {
    if !config.heads.is_multiple_of(config.kv_heads) {
        let range = format!("the divisors of {} heads", config.heads);
        return Err(FileError::out_of_range(
            "key/value heads",
            config.kv_heads,
            range,
        ));
    }
    if !config.head_dim.is_multiple_of(2) {
        return Err(FileError::out_of_range(
            "head dimension",
            config.head_dim,
            "even numbers",
        ));
    }
    for &id in &config.eos_ids {
        if id >= config.vocabulary {
            let range = format!("0 to {}", config.vocabulary - 1);
            return Err(FileError::out_of_range("end-of-sequence id", id, range));
        }
    }
    Ok(())
}
