//! Page hashes: 256 bits, chained over the prefix and keyed by the prefix domain.
//!
//! Everything hashed is a list of tagged, length-prefixed fields, so that no two different lists
//! encode to the same bytes. A hash only finds candidates; the index compares what it found.

use std::sync::Arc;

/// Hash of a page's tokens and everything before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageHash(pub [u8; 32]);

/// The hash function, injected into the pool.
pub trait PageHasher: Send {
    /// Hash of an encoded list of fields.
    fn hash(&self, encoded: &[u8]) -> PageHash;
}

/// The hasher of production: BLAKE3, 256 bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Blake3Hasher;

impl PageHasher for Blake3Hasher {
    fn hash(&self, encoded: &[u8]) -> PageHash {
        PageHash(*blake3::hash(encoded).as_bytes())
    }
}

/// Who may share prefixes: same model and numerics (the fingerprint), same salt. Pages of different
/// domains never match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixDomain {
    /// Digest of the compatibility fingerprint (model, KV type, layout, `RoPE`, numerics …).
    pub fingerprint_digest: [u8; 32],
    /// The tenant's or request's salt; may be empty.
    pub salt: Arc<[u8]>,
}

/// Tags of the fields; part of every encoding.
#[derive(Clone, Copy)]
enum Tag {
    Domain = 1,
    Fingerprint = 2,
    Salt = 3,
    Page = 4,
    Parent = 5,
    Tokens = 6,
}

/// Hash that the first page of a domain is chained to.
pub(crate) fn root_hash(hasher: &dyn PageHasher, domain: &PrefixDomain) -> PageHash {
    let mut encoded = Vec::with_capacity(80 + domain.salt.len());
    field(&mut encoded, Tag::Domain, b"baton prefix/1");
    field(&mut encoded, Tag::Fingerprint, &domain.fingerprint_digest);
    field(&mut encoded, Tag::Salt, &domain.salt);
    hasher.hash(&encoded)
}

/// Hash of a page with `tokens` after a prefix with hash `parent`.
pub(crate) fn page_hash(hasher: &dyn PageHasher, parent: PageHash, tokens: &[u32]) -> PageHash {
    let mut encoded = Vec::with_capacity(64 + 4 * tokens.len());
    field(&mut encoded, Tag::Page, b"");
    field(&mut encoded, Tag::Parent, &parent.0);
    header(&mut encoded, Tag::Tokens, 4 * tokens.len());
    for token in tokens {
        encoded.extend_from_slice(&token.to_le_bytes());
    }
    hasher.hash(&encoded)
}

fn field(encoded: &mut Vec<u8>, tag: Tag, value: &[u8]) {
    header(encoded, tag, value.len());
    encoded.extend_from_slice(value);
}

fn header(encoded: &mut Vec<u8>, tag: Tag, length: usize) {
    encoded.push(tag as u8);
    encoded.extend_from_slice(&(length as u64).to_le_bytes());
}
