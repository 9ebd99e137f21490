//! A receiver's pool as mapped by a sender. It must not know which pages may be written.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::TransferError;

/// Maps `bytes` of a memfd, shared. Nothing is populated: memory is committed as pages are first touched,
/// by whichever side touches them, so that the first copy into a page also pays for its faults. Huge pages
/// are asked for: a system that has none for shared memory refuses, which changes nothing but speed.
pub(super) fn map_shared(
    descriptor: BorrowedFd<'_>,
    bytes: usize,
) -> rustix::io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the system's choice overlaps nothing.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            MapFlags::SHARED,
            descriptor,
            0,
        )
    }?;
    #[cfg(target_os = "linux")]
    // SAFETY: the mapping just made; the advice changes no content.
    let _ = unsafe { rustix::mm::madvise(base, bytes, rustix::mm::Advice::LinuxHugepage) };
    NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)
}

/// Another process's pool, writable.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    base: NonNull<u8>,
    bytes: usize,
}

impl PeerMemory {
    /// Maps the descriptor of a peer after checking that it is `bytes` long and can never shrink.
    pub(crate) fn map(descriptor: &OwnedFd, bytes: usize) -> Result<Self, TransferError> {
        let refuse = |detail: String| TransferError::Memory {
            detail: format!("peer's pool: {detail}"),
        };
        let seals = rustix::fs::fcntl_get_seals(descriptor).map_err(|e| refuse(e.to_string()))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(refuse("its size is not sealed".to_owned()));
        }
        let size = rustix::fs::fstat(descriptor)
            .map_err(|e| refuse(e.to_string()))?
            .st_size;
        if usize::try_from(size).is_ok_and(|size| size >= bytes) && bytes > 0 {
            let base = map_shared(descriptor.as_fd(), bytes).map_err(|e| refuse(e.to_string()))?;
            Ok(Self { base, bytes })
        } else {
            Err(refuse(format!("{size} bytes, stated {bytes}")))
        }
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Copies `source` to `offset`.
    ///
    /// Panics if that is outside the region: callers check grants against the peer's layout.
    pub(crate) fn write(&self, offset: usize, source: &[u8]) {
        let end = offset.checked_add(source.len());
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "write of {} at {offset}",
            source.len()
        );
        // SAFETY: in bounds of the mapping, which lives as long as `self`; `source` is local memory and
        // cannot overlap it. The bytes belong to an attempt that is open for this sender; no reference
        // to them exists in this process.
        unsafe {
            std::ptr::copy_nonoverlapping(
                source.as_ptr(),
                self.base.as_ptr().add(offset),
                source.len(),
            );
        }
    }
}

// SAFETY: the pointer is to a process-wide mapping that this value owns.
unsafe impl Send for PeerMemory {}
// SAFETY: writes go to disjoint pages, each granted to one attempt.
unsafe impl Sync for PeerMemory {}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped, by its only owner.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
