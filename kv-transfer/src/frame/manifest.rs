//! What a sender promises at open and states at Commit. Whether it holds is not judged here.

use super::wire::{Reader, Writer};
use super::{FrameError, MAX_COMMIT_PAYLOAD_BYTES};

/// What a sender is going to send; the first frame after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// Pages to come: the prompt's pages after the reused prefix.
    pub pages: u32,
    /// Leading pages that the receiver holds.
    pub reused_pages: u32,
    /// Layers of each page.
    pub layers: u32,
    /// Bytes of one (layer, page) piece.
    pub piece_bytes: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Payload bytes in all.
    pub bytes: u64,
}

/// The sender's last word: everything has been sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Pieces sent.
    pub pieces: u64,
    /// Payload bytes sent.
    pub bytes: u64,
    /// Digest over all piece checksums.
    pub digest: [u8; 32],
    /// Opaque to the transfer.
    pub payload: Vec<u8>,
}

impl Manifest {
    pub(super) fn encode(&self, out: &mut Writer) {
        for value in [
            self.pages,
            self.reused_pages,
            self.layers,
            self.piece_bytes,
            self.prompt_tokens,
        ] {
            out.u32(value);
        }
        out.u64(self.bytes);
    }
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            pages: reader.u32()?,
            reused_pages: reader.u32()?,
            layers: reader.u32()?,
            piece_bytes: reader.u32()?,
            prompt_tokens: reader.u32()?,
            bytes: reader.u64()?,
        })
    }
}

impl Commit {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.u64(self.pieces);
        out.u64(self.bytes);
        out.bytes(&self.digest);
        out.u32(self.payload.len() as u32);
        out.bytes(&self.payload);
    }
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let (pieces, bytes, digest) = (reader.u64()?, reader.u64()?, reader.array()?);
        let payload = reader
            .sized("commit payload", MAX_COMMIT_PAYLOAD_BYTES)?
            .to_vec();
        Ok(Self {
            pieces,
            bytes,
            digest,
            payload,
        })
    }
}
