//! Anonymous memory as a KV region. Regions that a transport shares are the transport's.
#![allow(unsafe_code)] // Maps memory and implements the region's contract.

use std::{ffi::c_void, ptr::NonNull, sync::Arc};

use baton_kv_cache::KvMemory;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::EngineError;

/// A private mapping, zero and untouched at first, returned on drop.
#[derive(Debug)]
struct Anonymous {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to no thread; access is governed by `KvMemory`'s contract.
unsafe impl Send for Anonymous {}
// SAFETY: as above.
unsafe impl Sync for Anonymous {}

// SAFETY: the mapping has `length` bytes, is aligned to memory pages, readable and writable, and
// stays where it is until drop.
unsafe impl KvMemory for Anonymous {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.length
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: mapped by `anonymous_memory` with this length; nobody holds the region any more.
        // A failure could only mean that it was not mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
    }
}

/// Anonymous memory of this process as a KV region (no transport shares it).
///
/// # Errors
/// No bytes, or the system refuses the allocation.
pub fn anonymous_memory(bytes: usize) -> Result<Arc<dyn KvMemory>, EngineError> {
    let refused = |source| EngineError::System {
        what: format!("{bytes} bytes of KV memory"),
        source,
    };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the system's choice touches no existing memory.
    let base =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }
            .map_err(|error| refused(error.into()))?;
    let base = NonNull::new(base.cast::<u8>())
        .ok_or_else(|| refused(std::io::ErrorKind::OutOfMemory.into()))?;
    Ok(Arc::new(Anonymous {
        base,
        length: bytes,
    }))
}
