//! The receiver's memory. It must not know peers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use baton_kv_cache::KvMemory;
use rustix::fs::{MemfdFlags, SealFlags};

use super::peer::map_shared;
use crate::error::TransferError;

/// The receiver's memory: a memfd that senders on this host may map. Its size is sealed.
///
/// Memory is committed on first use, as for anonymous memory: reserving it now took 2.8 s per GiB on a
/// virtual machine, during which nothing could be served. Whoever chooses the size leaves room.
///
/// # Errors
/// The system refuses the memfd or the mapping.
pub fn shared_memory(bytes: usize) -> Result<Arc<SharedMemory>, TransferError> {
    let failed = |what: &str, error: rustix::io::Errno| TransferError::Memory {
        detail: format!("{what} of {bytes} bytes: {error}"),
    };
    if bytes == 0 {
        return Err(TransferError::Memory {
            detail: "region of 0 bytes".to_owned(),
        });
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = rustix::fs::memfd_create("baton-kv", flags).map_err(|e| failed("memfd", e))?;
    rustix::fs::ftruncate(&descriptor, bytes as u64).map_err(|e| failed("size", e))?;
    // A peer that holds the descriptor can neither shrink the region under us nor lift the seals.
    rustix::fs::fcntl_add_seals(
        &descriptor,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )
    .map_err(|e| failed("seal", e))?;
    let base = map_shared(descriptor.as_fd(), bytes).map_err(|e| failed("mapping", e))?;
    Ok(Arc::new(SharedMemory {
        base,
        bytes,
        descriptor,
    }))
}

/// A memfd mapping that implements [`KvMemory`].
#[derive(Debug)]
pub struct SharedMemory {
    base: NonNull<u8>,
    bytes: usize,
    descriptor: OwnedFd,
}

impl SharedMemory {
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

// SAFETY: the mapping is page-aligned, `bytes` long, readable, writable, and unmapped only on drop; the
// sealed size keeps every byte of it inside the memfd, which commits memory when a page is first touched.
unsafe impl KvMemory for SharedMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.bytes
    }
}

// SAFETY: the pointer is to a process-wide mapping that this value owns; no access happens here.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; shared access to the bytes is the contract of `KvMemory`.
unsafe impl Sync for SharedMemory {}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped, by its only owner.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
