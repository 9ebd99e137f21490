//! Little-endian fields. It must not know frames.

use super::FrameError;

/// Takes fields off the front of a body.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], FrameError> {
        let Some((field, rest)) = self.rest.split_at_checked(bytes) else {
            return Err(FrameError::Truncated {
                missing: bytes - self.rest.len(),
            });
        };
        self.rest = rest;
        Ok(field)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let mut field = [0; N];
        field.copy_from_slice(self.take(N)?);
        Ok(field)
    }

    pub(super) fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes behind a `u32` length of at most `limit`.
    pub(super) fn sized(
        &mut self,
        what: &'static str,
        limit: usize,
    ) -> Result<&'a [u8], FrameError> {
        let length = self.u32()? as usize;
        if length > limit {
            return Err(FrameError::Value {
                what,
                value: length as u64,
                limit: limit as u64,
            });
        }
        self.take(length)
    }

    pub(super) fn text(&mut self, what: &'static str, limit: usize) -> Result<String, FrameError> {
        let bytes = self.sized(what, limit)?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| FrameError::Text(what))
    }

    pub(super) fn end(&self) -> Result<(), FrameError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Trailing(self.rest.len()))
        }
    }
}

/// Appends fields to a body.
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(128),
        }
    }
    pub(super) fn bytes(&mut self, field: &[u8]) {
        self.bytes.extend_from_slice(field);
    }
    pub(super) fn u8(&mut self, field: u8) {
        self.bytes.push(field);
    }
    pub(super) fn u32(&mut self, field: u32) {
        self.bytes(&field.to_le_bytes());
    }
    pub(super) fn u64(&mut self, field: u64) {
        self.bytes(&field.to_le_bytes());
    }
    /// A string, cut to `limit` bytes at a character border (limits are far above what is in use).
    pub(super) fn text(&mut self, field: &str, limit: usize) {
        let mut end = field.len().min(limit);
        while !field.is_char_boundary(end) {
            end -= 1;
        }
        self.u32(end as u32);
        self.bytes(&field.as_bytes()[..end]);
    }
    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
