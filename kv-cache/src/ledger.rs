//! Pages by state. It must not know why a page is in a state.

/// States that a page can be in, exactly one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageState {
    Free,
    Cached,
    Live,
    Granted,
    Quarantined,
}

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

impl Ledger {
    /// Whether the five parts add up to the total.
    pub const fn is_balanced(&self) -> bool {
        let parts = self.free as u64
            + self.cached as u64
            + self.live as u64
            + self.granted as u64
            + self.quarantined as u64;
        parts == self.total as u64
    }

    /// Whether nobody holds a page: only `free` and `cached` are non-zero.
    pub const fn is_idle(&self) -> bool {
        self.live == 0 && self.granted == 0 && self.quarantined == 0
    }

    /// Pages that an allocation could get now, cached ones by eviction.
    pub const fn available(&self) -> u32 {
        self.free + self.cached
    }

    pub(crate) const fn all_free(total: u32) -> Self {
        Self {
            total,
            free: total,
            cached: 0,
            live: 0,
            granted: 0,
            quarantined: 0,
        }
    }

    pub(crate) fn move_page(&mut self, from: PageState, to: PageState) {
        *self.part(from) -= 1;
        *self.part(to) += 1;
    }

    fn part(&mut self, state: PageState) -> &mut u32 {
        match state {
            PageState::Free => &mut self.free,
            PageState::Cached => &mut self.cached,
            PageState::Live => &mut self.live,
            PageState::Granted => &mut self.granted,
            PageState::Quarantined => &mut self.quarantined,
        }
    }
}
