//! Tests of the pool against a shadow model, and of the prefix index.

mod prefix;
mod shadow;

use crate::{PageHash, PageHasher};

/// A hash of four bits: nearly everything collides.
pub(crate) struct FourBits;

impl PageHasher for FourBits {
    fn hash(&self, encoded: &[u8]) -> PageHash {
        let mut hash = [0; 32];
        hash[0] = blake3::hash(encoded).as_bytes()[0] & 15;
        PageHash(hash)
    }
}
