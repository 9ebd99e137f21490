//! Headers of safetensors files: a `u64` length, a JSON table, then the data
//! (<https://huggingface.co/docs/safetensors>).
//!
//! Only the header is read. It must not know which tensors a model needs.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use crate::stored::{Source, Stored, check_overlaps};
use crate::{FileError, TensorInfo, TensorType};

/// Longest header; one of 20,000 tensors takes 3 MB.
const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Most tensors of a file.
const MAX_TENSORS: usize = 1 << 16;
/// Most dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;
/// Bytes of the length before the header.
const PREFIX_BYTES: u64 = 8;

/// The header's bytes and its tensors, which lie inside the file and do not overlap.
pub(super) fn read(source: &Source, index: usize) -> Result<(Vec<u8>, Vec<Stored>), FileError> {
    let length = source.length();
    if length == 0 {
        return Err(FileError::Empty);
    }
    let truncated = |what: &str, offset, needed| FileError::Truncated {
        what: what.into(),
        offset,
        needed,
        length,
    };
    if length < PREFIX_BYTES {
        return Err(truncated("length of the header", 0, PREFIX_BYTES));
    }
    let prefix = source.read_at(0, PREFIX_BYTES as usize)?;
    let header_bytes = prefix
        .iter()
        .rev()
        .fold(0, |value, &byte| value << 8 | u64::from(byte));
    if header_bytes > MAX_HEADER_BYTES {
        let what = "length of the safetensors header".into();
        return Err(FileError::Limit {
            what,
            offset: 0,
            value: header_bytes,
            limit: MAX_HEADER_BYTES,
        });
    }
    if header_bytes > length - PREFIX_BYTES {
        return Err(truncated("safetensors header", PREFIX_BYTES, header_bytes));
    }
    let header = source.read_at(PREFIX_BYTES, header_bytes as usize)?;
    let Table(entries) = serde_json::from_slice(&header)
        .map_err(|error| FileError::Json(format!("safetensors header: {error}")))?;
    let data_start = PREFIX_BYTES + header_bytes;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let (info, start) = entry.check(name)?;
        let start = data_start.saturating_add(start);
        let needed = info.bytes() as u64;
        if start.saturating_add(needed) > length {
            return Err(truncated(
                &format!("data of tensor {:?}", info.name),
                start,
                needed,
            ));
        }
        tensors.push(Stored {
            native: info.name.clone(),
            info,
            source: index,
            start,
        });
    }
    check_overlaps(&tensors)?;
    Ok((header, tensors))
}

/// The JSON object, as a list: a repeated name is an error, not the last one's win.
struct Table(Vec<(String, Entry)>);

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    fn check(&self, name: String) -> Result<(TensorInfo, u64), FileError> {
        let kind = match self.dtype.as_str() {
            "F32" => TensorType::F32,
            "F16" => TensorType::F16,
            "BF16" => TensorType::BF16,
            other => {
                return Err(FileError::UnsupportedTensorType {
                    name,
                    kind: other.to_owned(),
                });
            }
        };
        let malformed = |problem: String| FileError::Malformed {
            what: format!("tensor {name:?}"),
            offset: PREFIX_BYTES,
            problem,
        };
        let shape = &self.shape;
        if shape.is_empty() || shape.len() > MAX_DIMENSIONS || shape.contains(&0) {
            let problem = format!(
                "shape {shape:?} must have 1 to {MAX_DIMENSIONS} dimensions, none of them 0"
            );
            return Err(malformed(problem));
        }
        let (last, outer) = (shape[shape.len() - 1], &shape[..shape.len() - 1]);
        let size = |value: u64| usize::try_from(value).ok();
        let sizes = outer
            .iter()
            .try_fold(1_u64, |rows, &size| rows.checked_mul(size))
            .and_then(|rows| Some((size(rows)?, size(last)?)));
        let bytes = sizes
            .and_then(|(rows, columns)| rows.checked_mul(columns)?.checked_mul(kind.block_bytes()));
        let (Some((rows, columns)), Some(bytes)) = (sizes, bytes) else {
            return Err(malformed(format!("shape {shape:?} overflows")));
        };
        let [start, end] = self.data_offsets;
        if end.checked_sub(start) != Some(bytes as u64) {
            let problem = format!("offsets {start} to {end} do not hold {bytes} bytes");
            return Err(malformed(problem));
        }
        Ok((
            TensorInfo {
                name,
                kind,
                rows,
                columns,
            },
            start,
        ))
    }
}

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor)
    }
}

struct TableVisitor;

impl<'de> Visitor<'de> for TableVisitor {
    type Value = Table;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
        let (mut entries, mut names) = (Vec::new(), HashSet::new());
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if name.is_empty() {
                return Err(A::Error::custom("empty tensor name"));
            }
            if entries.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor {name:?} occurs twice")));
            }
            let entry = map
                .next_value()
                .map_err(|error| A::Error::custom(format!("tensor {name:?}: {error}")))?;
            entries.push((name, entry));
        }
        Ok(Table(entries))
    }
}
