//! Checksums of pieces, digests of a whole transfer and of what was granted. It must not know where bytes come from.

use baton_proto::domain::PageSlot;
use baton_proto::ids::{Attempt, TransferId};

/// Sets the digest of granted slots apart from every other use of blake3.
const SLOTS_TAG: &[u8] = b"baton granted slots";

/// What a piece's checksum is bound to, besides its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceName {
    pub(crate) transfer_id: TransferId,
    pub(crate) attempt: Attempt,
    pub(crate) layer: u32,
    /// Page position in the prompt.
    pub(crate) position: u32,
}

/// CRC-32C of a piece, bound to its name and length.
///
/// `crc(id ‖ attempt ‖ layer ‖ position ‖ length ‖ crc(bytes))`: the inner checksum sees every flipped
/// bit, the outer one a piece that is whole but in the wrong place.
pub(crate) fn piece_checksum(name: &PieceName, bytes: &[u8]) -> u32 {
    let mut bound = [0u8; 36];
    bound[..16].copy_from_slice(&name.transfer_id.0);
    bound[16..20].copy_from_slice(&name.attempt.0.to_le_bytes());
    bound[20..24].copy_from_slice(&name.layer.to_le_bytes());
    bound[24..28].copy_from_slice(&name.position.to_le_bytes());
    bound[28..32].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    bound[32..].copy_from_slice(&crc_fast::crc32_iscsi(bytes).to_le_bytes());
    crc_fast::crc32_iscsi(&bound)
}

/// Digest that Commit carries: blake3 over id, attempt and every piece's checksum, layer by layer,
/// positions ascending.
pub(crate) fn transfer_digest(id: TransferId, attempt: Attempt, checksums: &[u32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&id.0);
    hasher.update(&attempt.0.to_le_bytes());
    hasher.update(&(checksums.len() as u64).to_le_bytes());
    let mut bytes = [0u8; 1024];
    for group in checksums.chunks(256) {
        for (place, checksum) in bytes.chunks_exact_mut(4).zip(group) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
        hasher.update(&bytes[..group.len() * 4]);
    }
    *hasher.finalize().as_bytes()
}

/// Digest that Hello carries: blake3 over a tag, the reused pages, and every granted slot in order. Over
/// shm the sender writes the pages its grant names before the receiver hears of them, so both must hold
/// the same grant before the sender gets at the memory.
pub(crate) fn slots_digest(reused_pages: u32, slots: &[PageSlot]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(SLOTS_TAG);
    hasher.update(&reused_pages.to_le_bytes());
    hasher.update(&(slots.len() as u64).to_le_bytes());
    let mut bytes = [0u8; 1024];
    for group in slots.chunks(128) {
        for (place, slot) in bytes.chunks_exact_mut(8).zip(group) {
            place[..4].copy_from_slice(&slot.page.to_le_bytes());
            place[4..].copy_from_slice(&slot.generation.to_le_bytes());
        }
        hasher.update(&bytes[..group.len() * 8]);
    }
    *hasher.finalize().as_bytes()
}
