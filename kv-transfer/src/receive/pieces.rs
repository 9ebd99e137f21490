//! Which pieces of an attempt have landed. It must not know where.

use crate::checksum::transfer_digest;
use crate::frame::AttemptKey;

/// One flag and checksum per (layer, page), layer-major.
#[derive(Debug)]
pub(crate) struct Pieces {
    pages: usize,
    landed: Vec<bool>,
    checksums: Vec<u32>,
    count: u64,
}

impl Pieces {
    pub(crate) fn new(layers: u32, pages: usize) -> Self {
        let pieces = layers as usize * pages;
        Self {
            pages,
            landed: vec![false; pieces],
            checksums: vec![0; pieces],
            count: 0,
        }
    }

    pub(crate) fn has_landed(&self, layer: u32, page: usize) -> bool {
        self.landed[layer as usize * self.pages + page]
    }

    /// Checksum of a piece that has landed.
    pub(crate) fn checksum(&self, layer: u32, page: usize) -> Option<u32> {
        let at = layer as usize * self.pages + page;
        self.landed[at].then_some(self.checksums[at])
    }

    pub(crate) fn land(&mut self, layer: u32, page: usize, checksum: u32) {
        let at = layer as usize * self.pages + page;
        self.count += u64::from(!self.landed[at]);
        self.landed[at] = true;
        self.checksums[at] = checksum;
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn expected(&self) -> u64 {
        self.landed.len() as u64
    }

    pub(crate) fn digest(&self, key: AttemptKey) -> [u8; 32] {
        transfer_digest(key.transfer_id, key.attempt, &self.checksums)
    }
}
