//! Memory straight from the system, in huge pages where it has them: a read of 100 MB in pages of
//! 4 KiB loses a third of the bandwidth to address translation.
//!
//! A [`Mapping`] is committed as it is touched, 2 MiB at a time. An [`Arena`] hands out one mapping in
//! pieces, each a [`Buffer`]. Nothing here knows what is stored. Regions that a transport shares are the
//! transport's.
#![allow(unsafe_code)] // Maps memory, hands out parts of it and implements the region's contract.

use std::{ffi::c_void, io, ptr::NonNull, sync::Arc};

use baton_kv_cache::KvMemory;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::EngineError;

/// Bytes of a huge page (of x86-64 and of most others).
const HUGE_BYTES: usize = 2 << 20;
/// Smallest mapping of an arena beyond its first; untouched parts cost nothing.
pub(super) const SLAB_BYTES: usize = 32 << 20;
/// Alignment of all buffers: a cache line.
const LINE: usize = 64;

/// A private mapping, zero and untouched at first, returned on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to no thread; access is governed by its users' contracts.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `length` bytes; from one huge page on, whole huge pages where the system has them.
    pub(super) fn new(length: usize) -> io::Result<Self> {
        if length < HUGE_BYTES {
            return Self::map(length);
        }
        let kept = length.checked_next_multiple_of(HUGE_BYTES);
        let whole = kept.and_then(|kept| kept.checked_add(HUGE_BYTES));
        let whole = Self::map(whole.ok_or(io::ErrorKind::OutOfMemory)?)?;
        let before = whole.base.as_ptr().align_offset(HUGE_BYTES);
        let kept = whole.length - HUGE_BYTES;
        let after = HUGE_BYTES - before;
        let start = whole.base.as_ptr();
        std::mem::forget(whole);
        // SAFETY: `before + kept + after` bytes from `start` on are this function's own mapping, of
        // which the first and the last part are given back; all three are whole pages.
        unsafe {
            let mapping = Self {
                base: NonNull::new_unchecked(start.add(before)),
                length: kept,
            };
            for (from, bytes) in [(start, before), (start.add(before + kept), after)] {
                if bytes > 0 {
                    munmap(from.cast::<c_void>(), bytes)?;
                }
            }
            advise(mapping.base.as_ptr(), kept);
            Ok(mapping)
        }
    }

    /// Some mapping of `length` bytes; none of no bytes.
    fn map(length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice touches no existing memory.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` or left over by `new`, with this length; nobody holds it any more.
        // A failure could only mean that it was not mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
    }
}

/// Asks for huge pages. A system without them refuses, which changes nothing but speed.
///
/// # Safety
/// The range is a mapping of the caller's.
#[cfg(target_os = "linux")]
unsafe fn advise(base: *mut u8, length: usize) {
    // SAFETY: the advice changes no content.
    let _ = unsafe {
        rustix::mm::madvise(
            base.cast::<c_void>(),
            length,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}

#[cfg(not(target_os = "linux"))]
unsafe fn advise(_: *mut u8, _: usize) {}

/// Hands out zeroed memory from one mapping after another.
#[derive(Debug, Default)]
pub struct Arena {
    mapping: Option<Arc<Mapping>>,
    /// Bytes of the mapping that are handed out.
    used: usize,
    /// Bytes that the first mapping should have.
    expected: usize,
}

impl Arena {
    /// An arena that needs one mapping alone if no more than `bytes` are taken in all.
    pub fn with_room(bytes: usize) -> Self {
        Self {
            expected: bytes,
            ..Self::default()
        }
    }

    /// `bytes` zeroed bytes, aligned to cache lines.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub(crate) fn take(&mut self, bytes: usize) -> io::Result<Buffer> {
        let room = bytes
            .checked_next_multiple_of(LINE)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = match &self.mapping {
            Some(mapping) if room <= mapping.length - self.used => mapping.clone(),
            earlier => {
                let least = earlier.as_ref().map_or(self.expected, |_| SLAB_BYTES);
                let mapping = Arc::new(Mapping::new(room.max(least).max(LINE))?);
                self.used = 0;
                self.mapping.insert(mapping).clone()
            }
        };
        // SAFETY: `used + room` bytes are inside the mapping.
        let pointer = unsafe { mapping.base.add(self.used) };
        self.used += room;
        Ok(Buffer {
            pointer,
            bytes,
            _mapping: mapping,
        })
    }
}

/// Zeroed, line-aligned memory of fixed size, of which threads may write disjoint parts. All access is
/// through the pointer; owners keep the rules of who writes what.
#[derive(Debug)]
pub(crate) struct Buffer {
    pointer: NonNull<u8>,
    bytes: usize,
    /// Owns the memory.
    _mapping: Arc<Mapping>,
}

// SAFETY: the buffer is the only one with these bytes and has no interior state besides them; concurrent
// access goes through the raw pointer under the contracts of the owners' unsafe functions.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` alone only gives a pointer and shared bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes, where nobody writes them.
    ///
    /// # Safety
    /// No write through [`Buffer::pointer`] while the slice lives.
    pub(crate) unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes; no concurrent write by the contract.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    /// The bytes as whole floats.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        let floats = self.bytes / size_of::<f32>();
        // SAFETY: initialised and aligned, borrowed exclusively; any bits are a float.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().cast::<f32>(), floats) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` initialised bytes, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

// SAFETY: the mapping has `length` bytes, is aligned to memory pages, readable and writable, and
// stays where it is until drop.
unsafe impl KvMemory for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.length
    }
}

/// Anonymous memory of this process as a KV region (no transport shares it): at least `bytes`, committed
/// as pages are first used, in huge pages if that is more than one.
///
/// # Errors
/// No bytes, or the system refuses the allocation.
pub fn anonymous_memory(bytes: usize) -> Result<Arc<dyn KvMemory>, EngineError> {
    let mapping = Mapping::new(bytes).map_err(|source| EngineError::System {
        what: format!("{bytes} bytes of KV memory"),
        source,
    })?;
    Ok(Arc::new(mapping))
}

#[cfg(test)]
mod tests;
