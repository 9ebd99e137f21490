//! The pool's state: holds per slot, free runs, eviction order, ledger. One function settles every
//! change of a page's state, so that the ledger cannot drift. It must not know of sequences.

use std::collections::BTreeSet;

use crate::free_runs::FreeRuns;
use crate::hash::{PageHash, PageHasher, page_hash};
use crate::ledger::{Ledger, PageState};
use crate::page::{Generation, Hold, PageIndex};
use crate::pool::OutOfPages;
use crate::prefix_index::{EntryId, Found, Parent, PrefixIndex};

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    generation: u32,
    /// References by [`Hold`].
    holds: [u32; 3],
    /// When the page became cached; orders eviction.
    cached_at: u64,
}

impl Slot {
    fn references(&self) -> u32 {
        self.holds.iter().sum()
    }
}

pub(crate) struct PoolState {
    pub(crate) page_size: u32,
    pub(crate) hasher: Box<dyn PageHasher>,
    pub(crate) ledger: Ledger,
    /// Pages evicted since the start.
    pub(crate) evicted: u64,
    slots: Vec<Slot>,
    free: FreeRuns,
    index: PrefixIndex,
    /// Cached pages in order of eviction: leaves first, longest unused first.
    evictable: BTreeSet<(bool, u64, PageIndex)>,
    clock: u64,
}

impl PoolState {
    pub(crate) fn new(pages: u32, page_size: u32, hasher: Box<dyn PageHasher>) -> Self {
        Self {
            page_size,
            hasher,
            ledger: Ledger::all_free(pages),
            evicted: 0,
            slots: vec![Slot::default(); pages as usize],
            free: FreeRuns::full(pages),
            index: PrefixIndex::new(pages),
            evictable: BTreeSet::new(),
            clock: 0,
        }
    }

    pub(crate) fn indexed(&self) -> u64 {
        self.index.inserted()
    }

    pub(crate) fn generation(&self, page: PageIndex) -> Generation {
        Generation(self.slots[page.0 as usize].generation)
    }

    pub(crate) fn references(&self, page: PageIndex) -> u32 {
        self.slots[page.0 as usize].references()
    }

    /// Allocates `count` pages, all or none, adjacent to `previous` and to each other where possible.
    pub(crate) fn allocate(
        &mut self,
        count: u32,
        previous: Option<PageIndex>,
        hold: Hold,
        into: &mut Vec<PageIndex>,
    ) -> Result<(), OutOfPages> {
        let available = self.ledger.available();
        if count > available {
            return Err(OutOfPages {
                needed: count,
                available,
            });
        }
        while self.ledger.free < count {
            self.evict_one();
        }
        let mut left = count;
        let mut previous = previous.map(|page| page.0);
        while left > 0 {
            // The loop above has made enough room.
            let Some((start, taken)) = self.free.take(left, previous) else {
                break;
            };
            for page in start..start + taken {
                let page = PageIndex(page);
                let slot = &mut self.slots[page.0 as usize];
                slot.generation = slot.generation.wrapping_add(1);
                self.change(page, |slot| slot.holds[hold as usize] += 1);
                into.push(page);
            }
            left -= taken;
            previous = Some(start + taken - 1);
        }
        Ok(())
    }

    pub(crate) fn hold(&mut self, page: PageIndex, hold: Hold) {
        self.change(page, |slot| slot.holds[hold as usize] += 1);
    }

    pub(crate) fn release(&mut self, page: PageIndex, hold: Hold) {
        self.change(page, |slot| slot.holds[hold as usize] -= 1);
    }

    pub(crate) fn convert(&mut self, page: PageIndex, from: Hold, to: Hold) {
        self.change(page, |slot| {
            slot.holds[from as usize] -= 1;
            slot.holds[to as usize] += 1;
        });
    }

    /// The entry that continues `parent` with `tokens`.
    pub(crate) fn find(
        &self,
        above: PageHash,
        parent: &Parent,
        tokens: &[u32],
    ) -> (PageHash, Found) {
        let hash = page_hash(self.hasher.as_ref(), above, tokens);
        (hash, self.index.find(hash, parent, tokens))
    }

    /// Whether what an entry is chained to is still in the index.
    pub(crate) fn is_current(&self, parent: &Parent) -> bool {
        match parent {
            Parent::Root(_) => true,
            Parent::Entry(id) => self.index.is_current(*id),
        }
    }

    /// Indexes a held page; `None` if that page already is under another prefix.
    pub(crate) fn index(
        &mut self,
        page: PageIndex,
        hash: PageHash,
        parent: Parent,
        tokens: &[u32],
    ) -> Option<EntryId> {
        if self.index.contains(page) || self.references(page) == 0 {
            return None;
        }
        let above = match &parent {
            Parent::Root(_) => None,
            Parent::Entry(id) => Some(id.page),
        };
        let id = self.index.insert(page, hash, parent, tokens);
        if let Some(above) = above {
            self.rank(above);
        }
        Some(id)
    }

    fn state(&self, page: PageIndex) -> PageState {
        let slot = &self.slots[page.0 as usize];
        if slot.holds[Hold::Sequence as usize] > 0 {
            PageState::Live
        } else if slot.holds[Hold::Grant as usize] > 0 {
            PageState::Granted
        } else if slot.holds[Hold::Quarantine as usize] > 0 {
            PageState::Quarantined
        } else if self.index.contains(page) {
            PageState::Cached
        } else {
            PageState::Free
        }
    }

    fn change(&mut self, page: PageIndex, apply: impl FnOnce(&mut Slot)) {
        let before = self.state(page);
        apply(&mut self.slots[page.0 as usize]);
        self.settle(page, before);
    }

    /// Books the move of `page` from state `before` to the one it is in now.
    fn settle(&mut self, page: PageIndex, before: PageState) {
        let after = self.state(page);
        if before == after {
            return;
        }
        self.ledger.move_page(before, after);
        if before == PageState::Cached {
            self.unrank(page);
        }
        match after {
            PageState::Free => self.free.insert(page.0),
            PageState::Cached => {
                self.clock += 1;
                self.slots[page.0 as usize].cached_at = self.clock;
                self.rank(page);
            }
            PageState::Live | PageState::Granted | PageState::Quarantined => {}
        }
    }

    /// Puts a cached page at its place in the eviction order.
    fn rank(&mut self, page: PageIndex) {
        if self.state(page) == PageState::Cached {
            self.unrank(page);
            let cached_at = self.slots[page.0 as usize].cached_at;
            self.evictable
                .insert((self.index.has_children(page), cached_at, page));
        }
    }

    fn unrank(&mut self, page: PageIndex) {
        let cached_at = self.slots[page.0 as usize].cached_at;
        self.evictable.remove(&(false, cached_at, page));
        self.evictable.remove(&(true, cached_at, page));
    }

    /// Evicts the longest unused leaf. If every cached page has descendants (a live page of another
    /// sequence with the same prefix may be chained to a cached one), these leave the index first.
    fn evict_one(&mut self) {
        let Some(&(_, _, page)) = self.evictable.first() else {
            return;
        };
        let mut doomed = vec![page];
        let mut at = 0;
        while at < doomed.len() {
            doomed.extend(self.index.children(doomed[at]));
            at += 1;
        }
        for page in doomed.into_iter().rev() {
            let before = self.state(page);
            if before == PageState::Cached {
                self.evicted += 1;
                self.unrank(page);
            }
            let above = self.index.remove(page);
            self.settle(page, before);
            if let Some(above) = above {
                self.rank(above);
            }
        }
    }

    /// Recomputes everything that is kept incrementally; for tests.
    #[cfg(test)]
    pub(crate) fn audit(&self) {
        let mut ledger = Ledger {
            total: self.slots.len() as u32,
            ..Ledger::default()
        };
        let mut cached = 0;
        for page in 0..ledger.total {
            let page = PageIndex(page);
            let part = match self.state(page) {
                PageState::Free => &mut ledger.free,
                PageState::Cached => {
                    cached += 1;
                    let at = self.slots[page.0 as usize].cached_at;
                    let key = (self.index.has_children(page), at, page);
                    assert!(self.evictable.contains(&key), "{page:?} is not ranked");
                    &mut ledger.cached
                }
                PageState::Live => &mut ledger.live,
                PageState::Granted => &mut ledger.granted,
                PageState::Quarantined => &mut ledger.quarantined,
            };
            *part += 1;
        }
        assert_eq!(ledger, self.ledger);
        assert_eq!(cached, self.evictable.len());
    }
}
