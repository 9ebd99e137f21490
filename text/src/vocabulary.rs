//! What every token id stands for: bytes, and whether it is text at all.
//!
//! Must not know how text becomes ids.

/// Bytes and kinds of all tokens, by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vocabulary {
    bytes: Vec<u8>,
    /// End of each token's bytes in `bytes`; its begin is the end of the one before.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
}

/// What an id is to a reader of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of the text.
    Text,
    /// A control token: never part of the text shown.
    Control,
    /// No token has this id.
    Hole,
}

/// All bytes of a vocabulary; ends are kept as `u32`.
const MAX_BYTES: usize = 1 << 30;

impl Vocabulary {
    /// Appends the token with the next id; `None` when the vocabulary has grown beyond reason.
    pub(crate) fn push(&mut self, bytes: &[u8], kind: Kind) -> Option<()> {
        if self.bytes.len() + bytes.len() > MAX_BYTES {
            return None;
        }
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len() as u32);
        self.kinds.push(kind);
        Some(())
    }

    /// Marks an id as one that is never shown.
    pub(crate) fn hide(&mut self, id: u32) {
        if let Some(kind) = self.kinds.get_mut(id as usize) {
            *kind = Kind::Control;
        }
    }

    /// Number of ids, holes included.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes and kind of a token; `None` if no token has the id.
    pub(crate) fn get(&self, id: u32) -> Option<(&[u8], Kind)> {
        let index = id as usize;
        let end = *self.ends.get(index)? as usize;
        let begin = index.checked_sub(1).map_or(0, |i| self.ends[i] as usize);
        let kind = self.kinds[index];
        (kind != Kind::Hole).then(|| (&self.bytes[begin..end], kind))
    }

    /// Length of the longest token in bytes.
    pub(crate) fn longest(&self) -> usize {
        let mut begin = 0;
        let mut longest = 0;
        for &end in &self.ends {
            longest = longest.max(end - begin);
            begin = end;
        }
        longest as usize
    }
}
