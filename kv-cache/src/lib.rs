//! KV pages: pool, page tables, prefix index, eviction, ledger.
//!
//! No I/O, no device code, no clock.

mod layout;
mod memory;

pub use layout::{KvDtype, KvLayout};
pub use memory::KvMemory;

/// Index of a page in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageIndex(pub u32);

/// Rises each time a page slot changes hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u32);

/// Pages by state; the five parts always add up to `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ledger {
    /// All pages.
    pub total: u32,
    /// Holding nothing.
    pub free: u32,
    /// Holding a prefix nobody references; evictable.
    pub cached: u32,
    /// Referenced by a sequence.
    pub live: u32,
    /// Reserved for a transfer.
    pub granted: u32,
    /// Waiting until a broken transfer's peer can no longer write.
    pub quarantined: u32,
}
