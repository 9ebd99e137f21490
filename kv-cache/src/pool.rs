//! The page pool: hands out page tables, finds and indexes prefixes, keeps the ledger.
//!
//! The pool is a handle; page tables give their pages back through it when dropped. It must not know
//! who owns a table.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::hash::{PageHash, PageHasher, PrefixDomain, root_hash};
use crate::ledger::Ledger;
use crate::page::{Generation, Hold, PageIndex};
use crate::pool_state::PoolState;
use crate::prefix_index::{Found, Parent};
use crate::table::PageTable;

/// Too few pages are free or evictable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{needed} pages needed, {available} available")]
pub struct OutOfPages {
    /// Asked for.
    pub needed: u32,
    /// Free, or cached and evictable.
    pub available: u32,
}

/// All pages of a worker. Cheap to clone; every clone is the same pool.
#[derive(Clone)]
pub struct PagePool(Arc<Mutex<PoolState>>);

/// Where a sequence's pages stand in the prefix index: its first `pages` pages are in there (its own,
/// or another's with the same content).
#[derive(Debug, Clone)]
pub struct PrefixCursor {
    domain: PrefixDomain,
    pages: u32,
    hash: PageHash,
    parent: Parent,
    stopped: bool,
}

/// What became of a page that was offered to the prefix index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Indexed {
    /// The page, or one with the same content, is in the index.
    Advanced,
    /// The prefix has been evicted; the cursor stands at page 0 again.
    Restarted,
    /// Never for this sequence: another prefix has the same hash.
    Stopped,
}

impl PrefixCursor {
    /// Leading pages in the index.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Whether offering more pages is pointless.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }
}

impl PagePool {
    /// A pool of `pages` free pages of `page_size` tokens. The hasher names prefixes; production takes
    /// [`Blake3Hasher`](crate::Blake3Hasher).
    pub fn new(pages: u32, page_size: u32, hasher: Box<dyn PageHasher>) -> Self {
        Self(Arc::new(Mutex::new(PoolState::new(
            pages, page_size, hasher,
        ))))
    }

    /// Pages by state.
    pub fn ledger(&self) -> Ledger {
        self.lock().ledger
    }

    /// Pages evicted since the start.
    pub fn evicted(&self) -> u64 {
        self.lock().evicted
    }

    /// Pages put into the prefix index since the start. As long as it stays the same, no prompt has a
    /// longer prefix here than before.
    pub fn indexed(&self) -> u64 {
        self.lock().indexed()
    }

    /// Generation of a slot.
    pub fn generation(&self, page: PageIndex) -> Generation {
        self.lock().generation(page)
    }

    /// An empty table.
    pub fn table(&self, hold: Hold) -> PageTable {
        PageTable::new(self.clone(), hold)
    }

    /// A cursor at the start of a domain.
    pub fn cursor(&self, domain: &PrefixDomain) -> PrefixCursor {
        PrefixCursor {
            domain: domain.clone(),
            pages: 0,
            hash: root_hash(self.lock().hasher.as_ref(), domain),
            parent: Parent::Root(domain.clone()),
            stopped: false,
        }
    }

    /// The longest prefix of `tokens` that is held here, in whole pages, `most_pages` at most. Its
    /// pages are referenced by the returned table from now on.
    pub fn prefix_hit(
        &self,
        domain: &PrefixDomain,
        tokens: &[u32],
        most_pages: u32,
        hold: Hold,
    ) -> (PageTable, PrefixCursor) {
        let mut cursor = self.cursor(domain);
        let mut table = self.table(hold);
        let mut state = self.lock();
        let page_size = state.page_size as usize;
        for page_tokens in tokens.chunks_exact(page_size).take(most_pages as usize) {
            let (hash, found) = state.find(cursor.hash, &cursor.parent, page_tokens);
            let Found::Hit(id) = found else {
                break;
            };
            state.hold(id.page, hold);
            table.push_held(id.page);
            cursor.advance(hash, Parent::Entry(id));
        }
        drop(state);
        (table, cursor)
    }

    /// Offers the page after the cursor's to the prefix index. It must be held, full and completely
    /// computed; `tokens` are its `page_size` tokens.
    pub fn index_page(
        &self,
        cursor: &mut PrefixCursor,
        tokens: &[u32],
        page: PageIndex,
    ) -> Indexed {
        let mut state = self.lock();
        debug_assert_eq!(tokens.len(), state.page_size as usize, "only full pages");
        if cursor.stopped {
            return Indexed::Stopped;
        }
        if !state.is_current(&cursor.parent) {
            drop(state);
            *cursor = self.cursor(&cursor.domain);
            return Indexed::Restarted;
        }
        let (hash, found) = state.find(cursor.hash, &cursor.parent, tokens);
        let entry = match found {
            Found::Hit(id) => Some(id),
            Found::Nothing => state.index(page, hash, cursor.parent.clone(), tokens),
            Found::Collision => None,
        };
        let Some(id) = entry else {
            cursor.stopped = true;
            return Indexed::Stopped;
        };
        cursor.advance(hash, Parent::Entry(id));
        Indexed::Advanced
    }

    /// Pages that would become available if all these tables were dropped now.
    pub fn freeable<'a>(&self, tables: impl IntoIterator<Item = &'a PageTable>) -> u32 {
        let mut held: HashMap<PageIndex, u32> = HashMap::new();
        for table in tables {
            for &page in table.pages() {
                *held.entry(page).or_default() += 1;
            }
        }
        let state = self.lock();
        let sole = |(page, count): &(PageIndex, u32)| state.references(*page) == *count;
        held.into_iter().filter(sole).count() as u32
    }

    /// Every step of the pool leaves the state whole, so a panic elsewhere does not spoil it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PrefixCursor {
    fn advance(&mut self, hash: PageHash, parent: Parent) {
        self.hash = hash;
        self.parent = parent;
        self.pages += 1;
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PagePool").field(&self.ledger()).finish()
    }
}
