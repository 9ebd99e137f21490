//! A forward-only reader that knows how many bytes are left, so that every declared length is
//! checked before anything is allocated for it.
//!
//! It must not know what the bytes mean.

use std::io::{ErrorKind, Read};

use crate::FileError;

/// Bytes that metadata and tensor table may take together. The largest vocabularies need about ten.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Reads little-endian values and hashes all that it reads.
pub(super) struct Cursor<R> {
    reader: R,
    offset: u64,
    length: u64,
    hasher: blake3::Hasher,
}

impl<R: Read> Cursor<R> {
    /// `length` is that of the whole file; `reader` stands at its start.
    pub(super) fn new(reader: R, length: u64) -> Self {
        Self {
            reader,
            offset: 0,
            length,
            hasher: blake3::Hasher::new(),
        }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Digest of everything read so far.
    pub(super) fn digest(&self) -> [u8; 32] {
        self.hasher.finalize().into()
    }

    /// Fails unless `count` items of at least `size` bytes each are left.
    pub(super) fn expect(&self, count: u64, size: u64, what: &str) -> Result<(), FileError> {
        let needed = count.saturating_mul(size);
        if needed > self.length - self.offset {
            let (offset, length) = (self.offset, self.length);
            return Err(FileError::Truncated {
                what: what.into(),
                offset,
                needed,
                length,
            });
        }
        if self.offset + needed > MAX_HEADER_BYTES {
            return Err(FileError::Limit {
                what: format!("end of {what}"),
                offset: self.offset,
                value: self.offset + needed,
                limit: MAX_HEADER_BYTES,
            });
        }
        Ok(())
    }

    pub(super) fn bytes(&mut self, count: u64, what: &str) -> Result<Vec<u8>, FileError> {
        self.expect(count, 1, what)?;
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], FileError> {
        self.expect(N as u64, 1, what)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, FileError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, FileError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string: `u64` length, then UTF-8.
    pub(super) fn string(&mut self, limit: u64, what: &str) -> Result<String, FileError> {
        let offset = self.offset;
        let length = self.u64(what)?;
        self.expect(length, 1, what)?;
        if length > limit {
            let what = format!("length of {what}");
            return Err(FileError::Limit {
                what,
                offset,
                value: length,
                limit,
            });
        }
        let bytes = self.bytes(length, what)?;
        String::from_utf8(bytes).map_err(|_| malformed(what, offset, "is not UTF-8"))
    }

    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<(), FileError> {
        self.reader
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => FileError::Changed(format!(
                    "{what} at offset {} is gone; the file had {} bytes",
                    self.offset, self.length
                )),
                _ => FileError::Io(error),
            })?;
        self.hasher.update(bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

pub(super) fn malformed(what: &str, offset: u64, problem: impl Into<String>) -> FileError {
    FileError::Malformed {
        what: what.into(),
        offset,
        problem: problem.into(),
    }
}
