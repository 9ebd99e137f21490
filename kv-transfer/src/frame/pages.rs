//! The head of a Pages frame: which pieces follow, or (shm) have been written in place.
//!
//! ```text
//! key 20 | layer u32 | position u32 | page u32 | count u32 | count × (generation u32, checksum u32) | payload
//! ```

use super::wire::{Reader, Writer};
use super::{
    AttemptKey, Decoded, Frame, FrameError, HEADER_BYTES, KEY_BYTES, MAX_PAYLOAD_BYTES,
    MAX_RUN_PAGES,
};

const FIXED_BYTES: usize = KEY_BYTES + 16;
const MARK_BYTES: usize = 8;
/// Longest head.
pub(super) const MAX_HEAD_BYTES: usize = FIXED_BYTES + MAX_RUN_PAGES * MARK_BYTES;

/// What is stated of one page of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageMark {
    /// Generation of the receiver's slot.
    pub generation: u32,
    /// Checksum of the piece.
    pub checksum: u32,
}

/// A run of pages that are adjacent in the prompt and in the receiver's pool, in one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagesHead {
    /// Whose pages.
    pub key: AttemptKey,
    /// Layer.
    pub layer: u32,
    /// Position of the first page in the prompt (reused pages count).
    pub position: u32,
    /// The receiver's index of the first page.
    pub page: u32,
    /// One mark per page, at least one.
    pub marks: Vec<PageMark>,
}

impl PagesHead {
    pub(super) fn encode(&self, out: &mut Writer) {
        self.key.encode(out);
        for value in [
            self.layer,
            self.position,
            self.page,
            self.marks.len() as u32,
        ] {
            out.u32(value);
        }
        for mark in &self.marks {
            out.u32(mark.generation);
            out.u32(mark.checksum);
        }
    }
}

/// A run has pages, not too many, and ends within 32 bits.
fn check_run(position: u32, page: u32, count: usize) -> Result<(), FrameError> {
    if count == 0 || count > MAX_RUN_PAGES {
        return Err(FrameError::Value {
            what: "pages in a run",
            value: count as u64,
            limit: MAX_RUN_PAGES as u64,
        });
    }
    for (what, first) in [("last position", position), ("last page", page)] {
        if first.checked_add(count as u32).is_none() {
            let value = u64::from(first) + count as u64;
            return Err(FrameError::Value {
                what,
                value,
                limit: u64::from(u32::MAX),
            });
        }
    }
    Ok(())
}

/// Decodes a head of which `rest` holds the front; the payload need not be there.
pub(super) fn decode_head(rest: &[u8], body_bytes: usize) -> Result<Option<Decoded>, FrameError> {
    if body_bytes < FIXED_BYTES {
        return Err(FrameError::Truncated {
            missing: FIXED_BYTES - body_bytes,
        });
    }
    let Some(fixed) = rest.get(..FIXED_BYTES) else {
        return Ok(None);
    };
    let mut reader = Reader::new(fixed);
    let key = AttemptKey::decode(&mut reader)?;
    let (layer, position, page, count) = (
        reader.u32()?,
        reader.u32()?,
        reader.u32()?,
        reader.u32()? as usize,
    );
    check_run(position, page, count)?;
    let head_bytes = FIXED_BYTES + count * MARK_BYTES;
    let payload_bytes =
        body_bytes
            .checked_sub(head_bytes)
            .ok_or_else(|| FrameError::Truncated {
                missing: head_bytes - body_bytes,
            })?;
    if payload_bytes > MAX_PAYLOAD_BYTES || !payload_bytes.is_multiple_of(count) {
        return Err(FrameError::Value {
            what: "payload bytes",
            value: payload_bytes as u64,
            limit: MAX_PAYLOAD_BYTES as u64,
        });
    }
    let Some(marks) = rest.get(FIXED_BYTES..head_bytes) else {
        return Ok(None);
    };
    let mut reader = Reader::new(marks);
    let marks = (0..count)
        .map(|_| {
            Ok(PageMark {
                generation: reader.u32()?,
                checksum: reader.u32()?,
            })
        })
        .collect::<Result<_, FrameError>>()?;
    let frame = Frame::Pages(PagesHead {
        key,
        layer,
        position,
        page,
        marks,
    });
    Ok(Some(Decoded {
        frame,
        consumed: HEADER_BYTES + head_bytes,
        payload_bytes,
    }))
}
