//! Names of page slots. Who holds a page is the pool's business, not this module's.

/// Index of a page in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageIndex(pub u32);

/// Rises (wrapping) each time a page slot changes hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u32);

/// Why a table refers to its pages. Of several holds on one page the first named here decides the
/// page's state in the [`Ledger`](crate::Ledger).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hold {
    /// A sequence computes on, or attends to, the page.
    Sequence,
    /// The page is reserved for a transfer, or is the reused prefix of one.
    Grant,
    /// A broken transfer's peer may still write the page.
    Quarantine,
}
