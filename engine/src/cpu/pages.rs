//! Order of values inside a page piece, and the doors to it.
//!
//! A piece is one (layer, page): K of all heads, then V of all heads. Per head, K is a matrix of
//! `head_dim` rows by `page_size` columns (tokens) and V one of `page_size` rows (tokens) by
//! `head_dim` columns. Both interleave their rows in pairs: values (2i, c) and (2i + 1, c) are
//! neighbours, so that one vector load yields two rows over 16 columns; a last odd row stands alone.
//!
//! 8-bit pages hold codes: K or V of one token and head, divided by its scale (the largest magnitude
//! over 127) and rounded. Their rows are interleaved in fours, and what is left at the end among
//! itself. The bytes of K are codes plus 128, those of V codes in two's complement. After a head's
//! matrix follow the scales of its `page_size` tokens as f32. With 16 tokens and whole vectors of
//! dimensions, everything begins at a cache line.
//!
//! Who owns a page is the pool's business.
#![allow(unsafe_code)] // Reads and writes the KV region through its base pointer.

mod element;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use baton_kv_cache::{KvDtype, KvLayout, KvMemory, PageIndex};

pub(crate) use self::element::{Bf16, Element, KeyCode, Plain, ValueCode};
use self::write::{write_bf16, write_f16, write_f32, write_int8};
use crate::Isa;

/// The order's name in the fingerprint.
pub(crate) const LAYOUT_ID: &str = "layer-major/row-groups/1";

/// The KV region with its layout.
#[derive(Debug)]
pub(crate) struct Pages {
    layout: KvLayout,
    /// Owns the memory that `piece` points into.
    memory: Arc<dyn KvMemory>,
}

/// Rotated K and V of all heads of one token.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenHeads<'a> {
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
}

impl Pages {
    /// A region laid out as `layout`, whose size and alignment have been checked.
    pub(crate) fn new(layout: KvLayout, memory: Arc<dyn KvMemory>) -> Self {
        assert!(memory.len() >= layout.region_bytes());
        Self { layout, memory }
    }

    /// Shape of the region.
    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Start of K and of V of one head in a piece.
    pub(crate) fn head(&self, layer: u32, page: PageIndex, head: usize) -> (*mut u8, *mut u8) {
        let layout = &self.layout;
        assert!(layer < layout.layers && page.0 < layout.pages && head < layout.kv_heads as usize);
        let half = layout.piece_bytes() / 2;
        let at = layout.piece_offset(layer, page.0) + head * layout.head_bytes();
        // SAFETY: the offsets stay inside `region_bytes`, as asserted here and in `new`.
        unsafe {
            let base = self.memory.base().as_ptr().add(at);
            (base, base.add(half))
        }
    }

    /// Writes K and V of one token, or of two into an even slot and the next, rounded to the page
    /// type.
    ///
    /// # Safety
    /// The page belongs to the caller's sequence, and nobody else accesses the slots meanwhile.
    pub(crate) unsafe fn write(
        &self,
        isa: Isa,
        layer: u32,
        (page, slot): (PageIndex, usize),
        tokens: &[TokenHeads<'_>],
    ) {
        let layout = &self.layout;
        let width = layout.kv_heads as usize * layout.head_dim as usize;
        let fits = match tokens.len() {
            1 => slot < layout.page_size as usize,
            2 => slot.is_multiple_of(2) && slot + 1 < layout.page_size as usize,
            _ => false,
        };
        let whole =
            |token: &TokenHeads<'_>| [token.keys, token.values].map(<[f32]>::len) == [width; 2];
        assert!(fits && tokens.iter().all(whole));
        // SAFETY: the caller's promise; slots and lengths have been checked.
        unsafe {
            match layout.dtype {
                KvDtype::Bf16 => write_bf16(isa, self, layer, page, slot, tokens),
                KvDtype::F16 => write_f16(isa, self, layer, page, slot, tokens),
                KvDtype::F32 => write_f32(isa, self, layer, page, slot, tokens),
                KvDtype::Int8 => write_int8(isa, self, layer, page, slot, tokens),
            }
        }
    }

    /// Copies a page, all layers.
    ///
    /// # Safety
    /// Both pages belong to the caller, and nobody else accesses `to` meanwhile.
    pub(crate) unsafe fn copy(&self, from: PageIndex, to: PageIndex) {
        assert!(from.0 < self.layout.pages && to.0 < self.layout.pages);
        let base = self.memory.base().as_ptr();
        for layer in 0..self.layout.layers {
            let offset = |page: PageIndex| self.layout.piece_offset(layer, page.0);
            // SAFETY: both pieces lie in the region and are one piece long; equal or disjoint.
            unsafe {
                std::ptr::copy(
                    base.add(offset(from)),
                    base.add(offset(to)),
                    self.layout.piece_bytes(),
                );
            }
        }
    }
}
