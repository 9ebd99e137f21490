//! The memory behind the pages. Who owns a page is the pool's business, not this module's.
#![allow(unsafe_code)] // Declares the contract that kernels and the shared-memory transport rely on.

use std::ptr::NonNull;

/// A region that holds every page, shared between the engine (computes on it) and the transfer
/// (reads and writes pages of it).
///
/// # Safety
/// `base()` must point to `len()` bytes, aligned to 64, readable and writable and at the same address
/// for as long as the value lives. Implementors do no access of their own; users access a page only while the pool says that it is theirs.
pub unsafe trait KvMemory: Send + Sync + std::fmt::Debug {
    /// First byte of the region.
    fn base(&self) -> NonNull<u8>;
    /// Bytes of the region, at least the layout's `region_bytes`.
    fn len(&self) -> usize;
    /// Whether the region is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
