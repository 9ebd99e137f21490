//! The header of a GGUF file, parsed once into a type that holds only what has been checked:
//! unique keys and names, known types, shapes of whole blocks, data inside the file.
//!
//! It must not know what keys and tensors mean to a model.

use std::collections::HashSet;
use std::io::Read;

use super::cursor::{Cursor, malformed};
use super::names::canonical;
use super::value::{Metadata, Value};
use crate::stored::{Stored, check_overlaps};
use crate::{FileError, TensorInfo, TensorType};

/// Most metadata entries; real files have some forty.
const MAX_ENTRIES: u64 = 1 << 14;
/// Most tensors; a dense model of 126 layers has about 1,400.
const MAX_TENSORS: u64 = 1 << 16;
/// Longest key, from the GGUF specification.
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
/// Longest tensor name. GGUF allows 64 bytes; a little more does no harm.
const MAX_NAME_BYTES: u64 = 256;
/// Alignment where the file states none, from the specification.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest alignment accepted.
const MAX_ALIGNMENT: u64 = 64 << 10;
/// Smallest entry: key length, a key byte, type, a value byte.
const ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Smallest tensor entry: name length, a name byte, dimension count, a dimension, type, offset.
const TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Metadata and tensor table of a GGUF file.
#[derive(Debug)]
pub struct GgufHeader {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<Stored>,
    digest: [u8; 32],
}

impl GgufHeader {
    /// Number of metadata entries.
    pub fn entries(&self) -> usize {
        self.metadata.len()
    }

    /// Tensors, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter().map(|stored| &stored.info)
    }

    /// Digest of all bytes of the header.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Hands over the tensor table.
    pub(crate) fn take_tensors(&mut self) -> Vec<Stored> {
        std::mem::take(&mut self.tensors)
    }
}

/// Parses the header of a GGUF file that lies in memory as a whole, tensor data included.
///
/// Allocates at most a small multiple of `bytes.len()`.
///
/// # Errors
/// Whatever is wrong with the bytes, with offset and name.
pub fn parse_gguf_header(bytes: &[u8]) -> Result<GgufHeader, FileError> {
    read(bytes, bytes.len() as u64)
}

/// Parses the header that starts at `reader`, of a file of `length` bytes.
pub(crate) fn read<R: Read>(reader: R, length: u64) -> Result<GgufHeader, FileError> {
    let mut cursor = Cursor::new(reader, length);
    let (tensor_count, entry_count) = preamble(&mut cursor)?;
    let mut metadata = Metadata::default();
    for _ in 0..entry_count {
        let offset = cursor.offset();
        let key = cursor.string(MAX_KEY_BYTES, "metadata key")?;
        if key.is_empty() {
            return Err(malformed("metadata key", offset, "is empty"));
        }
        metadata.read(&mut cursor, key, offset)?;
    }
    let alignment = alignment(&metadata)?;
    let mut entries = Vec::new();
    for _ in 0..tensor_count {
        entries.push(tensor(&mut cursor, alignment)?);
    }
    let data_start = cursor.offset().next_multiple_of(alignment);
    let mut names = HashSet::new();
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        let name = entry.info.name.clone();
        let unique =
            names.insert(entry.native.clone()) && (name == entry.native || names.insert(name));
        if !unique {
            let what = format!("tensor {:?}", entry.native);
            return Err(malformed(&what, entry.at, "occurs twice"));
        }
        tensors.push(place(entry, data_start, length)?);
    }
    check_overlaps(&tensors)?;
    Ok(GgufHeader {
        metadata,
        tensors,
        digest: cursor.digest(),
    })
}

/// Magic, version and the two counts.
fn preamble<R: Read>(cursor: &mut Cursor<R>) -> Result<(u64, u64), FileError> {
    if cursor.length() == 0 {
        return Err(FileError::Empty);
    }
    if cursor.length() < 4 {
        return Err(FileError::NotAModel(format!(
            "{} bytes are too short for a GGUF file",
            cursor.length()
        )));
    }
    let magic = cursor.array::<4>("magic")?;
    if &magic != b"GGUF" {
        return Err(FileError::NotAModel(format!(
            "starts with \"{}\" instead of \"GGUF\"",
            magic.escape_ascii()
        )));
    }
    match cursor.u32("version")? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => return Err(FileError::BigEndian),
        version => return Err(FileError::UnsupportedVersion(version)),
    }
    let offset = cursor.offset();
    let tensors = cursor.u64("tensor count")?;
    let entries = cursor.u64("metadata count")?;
    for (what, value, limit, size) in [
        ("metadata count", entries, MAX_ENTRIES, ENTRY_BYTES),
        ("tensor count", tensors, MAX_TENSORS, TENSOR_BYTES),
    ] {
        if value > limit {
            return Err(FileError::Limit {
                what: what.into(),
                offset,
                value,
                limit,
            });
        }
        cursor.expect(value, size, &format!("{what} of {value}"))?;
    }
    Ok((tensors, entries))
}

fn alignment(metadata: &Metadata) -> Result<u64, FileError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Uint32(value)) => {
            let value = u64::from(*value);
            if !value.is_power_of_two() || value > MAX_ALIGNMENT {
                let range = format!("the powers of two from 1 to {MAX_ALIGNMENT}");
                return Err(FileError::out_of_range(KEY, value, range));
            }
            Ok(value)
        }
        Some(_) => Err(super::value::wrong(KEY, "a uint32")),
    }
}

/// A tensor entry before its data has been placed in the file.
struct Entry {
    native: String,
    info: TensorInfo,
    bytes: u64,
    /// Relative to the start of the data.
    start: u64,
    /// Offset of the entry itself.
    at: u64,
}

fn tensor<R: Read>(cursor: &mut Cursor<R>, alignment: u64) -> Result<Entry, FileError> {
    let at = cursor.offset();
    let native = cursor.string(MAX_NAME_BYTES, "tensor name")?;
    if native.is_empty() {
        return Err(malformed("tensor name", at, "is empty"));
    }
    let what = format!("tensor {native:?}");
    let offset = cursor.offset();
    let dimensions = cursor.u32(&what)?;
    if !(1..=4).contains(&dimensions) {
        let problem = format!("has {dimensions} dimensions, outside 1 to 4");
        return Err(malformed(&what, offset, problem));
    }
    let mut shape = [1_u64; 4];
    for size in shape.iter_mut().take(dimensions as usize) {
        let offset = cursor.offset();
        *size = cursor.u64(&what)?;
        if *size == 0 {
            return Err(malformed(&what, offset, "has a dimension of zero"));
        }
    }
    let id = cursor.u32(&what)?;
    let Some(kind) = TensorType::from_gguf_id(id) else {
        return Err(FileError::UnsupportedTensorType {
            name: native,
            kind: type_name(id),
        });
    };
    let offset = cursor.offset();
    let start = cursor.u64(&what)?;
    if !start.is_multiple_of(alignment) {
        let problem = format!("data offset {start} is no multiple of the alignment {alignment}");
        return Err(malformed(&what, offset, problem));
    }
    let too_large = || malformed(&what, at, format!("shape {shape:?} overflows"));
    // The first dimension is contiguous: it is the columns of a row-major matrix.
    let columns = usize::try_from(shape[0]).map_err(|_| too_large())?;
    let rows = shape[1..]
        .iter()
        .try_fold(1_u64, |rows, &size| rows.checked_mul(size))
        .and_then(|rows| usize::try_from(rows).ok())
        .ok_or_else(too_large)?;
    if !columns.is_multiple_of(kind.block_size()) {
        let problem = format!("{columns} columns are no whole blocks of {kind:?}");
        return Err(malformed(&what, at, problem));
    }
    let bytes = kind
        .row_bytes(columns)
        .and_then(|row| row.checked_mul(rows))
        .filter(|&bytes| isize::try_from(bytes).is_ok() && rows.checked_mul(columns).is_some())
        .ok_or_else(too_large)? as u64;
    let info = TensorInfo {
        name: canonical(&native),
        kind,
        rows,
        columns,
    };
    Ok(Entry {
        native,
        info,
        bytes,
        start,
        at,
    })
}

fn place(entry: Entry, data_start: u64, length: u64) -> Result<Stored, FileError> {
    let start = data_start.saturating_add(entry.start);
    if start.saturating_add(entry.bytes) > length {
        return Err(FileError::Truncated {
            what: format!("data of tensor {:?}", entry.native),
            offset: start,
            needed: entry.bytes,
            length,
        });
    }
    Ok(Stored {
        native: entry.native,
        info: entry.info,
        source: 0,
        start,
    })
}

/// What ggml calls a type that is not read here, for the error.
fn type_name(id: u32) -> String {
    let name = match id {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("{id} (unknown)"),
    };
    format!("{id} ({name})")
}
