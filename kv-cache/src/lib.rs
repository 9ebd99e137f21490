//! KV pages: pool, page tables, prefix index, eviction, ledger.
//!
//! No I/O, no device code, no clock.

mod free_runs;
mod hash;
mod layout;
mod ledger;
mod memory;
mod page;
mod pool;
mod pool_state;
mod prefix_index;
mod table;
#[cfg(test)]
mod tests;

pub use hash::{Blake3Hasher, PageHash, PageHasher, PrefixDomain};
pub use layout::{KvDtype, KvLayout};
pub use ledger::Ledger;
pub use memory::KvMemory;
pub use page::{Generation, Hold, PageIndex};
pub use pool::{Indexed, OutOfPages, PagePool, PrefixCursor};
pub use table::PageTable;
