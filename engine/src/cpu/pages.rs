//! Order of values inside a page piece, and writing K and V into it.
//!
//! A piece is one (layer, page): K of all heads, then V of all heads. Per head, K is a matrix of
//! `head_dim` rows by `page_size` columns (tokens) and V one of `page_size` rows (tokens) by
//! `head_dim` columns. Both interleave their rows in pairs: values (2i, c) and (2i + 1, c) are
//! neighbours, so that one vector load yields two rows over 16 columns; a last odd row stands alone.
//! Who owns a page is the pool's business.
#![allow(unsafe_code)] // Reads and writes the KV region through its base pointer.

use std::sync::Arc;

use baton_kv_cache::{KvDtype, KvLayout, KvMemory, PageIndex};

/// The order's name in the fingerprint.
pub(crate) const LAYOUT_ID: &str = "layer-major/row-pairs/1";

/// The KV region with its layout.
#[derive(Debug)]
pub(crate) struct Pages {
    layout: KvLayout,
    /// Owns the memory that `piece` points into.
    memory: Arc<dyn KvMemory>,
}

/// Where values of one element type lie, and how they are rounded.
pub(crate) trait Element: Copy {
    /// Rounds to nearest, ties to even.
    fn round(value: f32) -> Self;
    /// Exact.
    fn widen(self) -> f32;
}

/// bfloat16 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);

impl Element for Bf16 {
    #[inline(always)]
    fn round(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // Rounding could carry a not-a-number's bits into infinity; keep its top bits, made quiet.
        Self(if value.is_nan() {
            bits >> 16 | 0x40
        } else {
            rounded
        } as u16)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl Element for half::f16 {
    #[inline(always)]
    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for f32 {
    #[inline(always)]
    fn round(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

/// Position of (row, column) in a matrix whose rows are interleaved in pairs.
#[inline(always)]
pub(crate) fn paired(row: usize, column: usize, rows: usize, columns: usize) -> usize {
    if row | 1 < rows {
        (row & !1) * columns + 2 * column + (row & 1)
    } else {
        row * columns + column
    }
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
        let at = layout.piece_offset(layer, page.0) + head * (half / layout.kv_heads as usize);
        // SAFETY: the offsets stay inside `region_bytes`, as asserted here and in `new`.
        unsafe {
            let base = self.memory.base().as_ptr().add(at);
            (base, base.add(half))
        }
    }

    /// Writes K and V of one token and head, rounded to the page type.
    ///
    /// # Safety
    /// The page belongs to the caller's sequence, and nobody else accesses the slot meanwhile.
    pub(crate) unsafe fn write(
        &self,
        layer: u32,
        (page, slot): (PageIndex, usize),
        head: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (keys, values) = self.head(layer, page, head);
        // SAFETY: both are matrices of this shape; the slot is checked in `write_as`.
        unsafe {
            match self.layout.dtype {
                KvDtype::Bf16 => self.write_as::<Bf16>(keys, values, slot, key, value),
                KvDtype::F16 => self.write_as::<half::f16>(keys, values, slot, key, value),
                KvDtype::F32 => self.write_as::<f32>(keys, values, slot, key, value),
            }
        }
    }

    /// # Safety
    /// As [`Self::write`]; the pointers are the head's matrices of element type `E`.
    unsafe fn write_as<E: Element>(
        &self,
        keys: *mut u8,
        values: *mut u8,
        slot: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (tokens, width) = (
            self.layout.page_size as usize,
            self.layout.head_dim as usize,
        );
        assert!(slot < tokens && key.len() == width && value.len() == width);
        let (keys, values) = (keys.cast::<E>(), values.cast::<E>());
        for (dimension, (key, value)) in key.iter().zip(value).enumerate() {
            // SAFETY: `paired` is a bijection onto `0..tokens * width`, the size of each matrix.
            unsafe {
                keys.add(paired(dimension, slot, width, tokens))
                    .write(E::round(*key));
                values
                    .add(paired(slot, dimension, tokens, width))
                    .write(E::round(*value));
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
