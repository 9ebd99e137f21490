//! Line-aligned bytes that several threads may write in disjoint parts.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::format::LINE;

/// Zeroed, 64-byte aligned memory of fixed size. All access is through the pointer; owners keep the
/// rules of who writes what.
#[derive(Debug)]
pub(super) struct Buffer {
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the buffer owns its memory and has no interior state besides it; concurrent access goes
// through the raw pointer under the contracts of the owners' unsafe functions.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` alone only gives a pointer and shared bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(super) fn new(bytes: usize) -> Self {
        let layout = Self::layout(bytes);
        // SAFETY: the layout has a non-zero size.
        let pointer = unsafe { alloc_zeroed(layout) };
        let Some(pointer) = NonNull::new(pointer) else {
            handle_alloc_error(layout)
        };
        Self { pointer, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes.max(LINE), LINE).expect("sizes are below isize::MAX")
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes, where nobody writes them.
    ///
    /// # Safety
    /// No write through [`Buffer::pointer`] while the slice lives.
    pub(super) unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes; no concurrent write by the contract.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` initialised bytes, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.pointer.as_ptr(), Self::layout(self.bytes)) }
    }
}
