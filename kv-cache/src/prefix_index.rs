//! The prefix index: which full, completely computed page holds which tokens after which prefix.
//!
//! Entries form trees; a parent is always there as long as a child is. On every look-up the stored
//! tokens and the parent are compared, so a colliding hash is a miss. It must not know who holds
//! pages or when they are evicted.

use std::collections::{BTreeSet, HashMap};

use crate::hash::{PageHash, PrefixDomain};
use crate::page::PageIndex;

/// What an entry is chained to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parent {
    /// First page of a prompt.
    Root(PrefixDomain),
    /// The page before.
    Entry(EntryId),
}

/// Name of an entry; never reused, unlike its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryId {
    pub(crate) page: PageIndex,
    serial: u64,
}

#[derive(Debug)]
struct Entry {
    id: EntryId,
    hash: PageHash,
    parent: Parent,
    tokens: Box<[u32]>,
    children: BTreeSet<PageIndex>,
}

/// What a look-up found under a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Exactly this prefix.
    Hit(EntryId),
    /// Nothing.
    Nothing,
    /// Another prefix with the same hash.
    Collision,
}

/// All entries, by page and by hash.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    by_page: Vec<Option<Entry>>,
    by_hash: HashMap<PageHash, PageIndex>,
    next_serial: u64,
}

impl PrefixIndex {
    pub(crate) fn new(pages: u32) -> Self {
        Self {
            by_page: (0..pages).map(|_| None).collect(),
            by_hash: HashMap::new(),
            next_serial: 0,
        }
    }

    /// Entries added since the start.
    pub(crate) fn inserted(&self) -> u64 {
        self.next_serial
    }

    pub(crate) fn contains(&self, page: PageIndex) -> bool {
        self.entry(page).is_some()
    }

    /// Whether the entry is still there.
    pub(crate) fn is_current(&self, id: EntryId) -> bool {
        self.entry(id.page).is_some_and(|entry| entry.id == id)
    }

    pub(crate) fn has_children(&self, page: PageIndex) -> bool {
        self.entry(page)
            .is_some_and(|entry| !entry.children.is_empty())
    }

    pub(crate) fn children(&self, page: PageIndex) -> Vec<PageIndex> {
        self.entry(page)
            .map(|entry| entry.children.iter().copied().collect())
            .unwrap_or_default()
    }

    pub(crate) fn find(&self, hash: PageHash, parent: &Parent, tokens: &[u32]) -> Found {
        let Some(entry) = self.by_hash.get(&hash).and_then(|&page| self.entry(page)) else {
            return Found::Nothing;
        };
        if entry.parent == *parent && *entry.tokens == *tokens {
            Found::Hit(entry.id)
        } else {
            Found::Collision
        }
    }

    /// Adds an entry. The caller has looked: the hash and the page are not in use, the parent is current.
    pub(crate) fn insert(
        &mut self,
        page: PageIndex,
        hash: PageHash,
        parent: Parent,
        tokens: &[u32],
    ) -> EntryId {
        let id = EntryId {
            page,
            serial: self.next_serial,
        };
        self.next_serial += 1;
        if let Parent::Entry(above) = &parent
            && let Some(above) = self.by_page[above.page.0 as usize].as_mut()
        {
            above.children.insert(page);
        }
        self.by_hash.insert(hash, page);
        self.by_page[page.0 as usize] = Some(Entry {
            id,
            hash,
            parent,
            tokens: tokens.into(),
            children: BTreeSet::new(),
        });
        id
    }

    /// Removes a childless entry; returns its parent's page.
    pub(crate) fn remove(&mut self, page: PageIndex) -> Option<PageIndex> {
        let entry = self.by_page[page.0 as usize].take()?;
        debug_assert!(entry.children.is_empty(), "children go before parents");
        self.by_hash.remove(&entry.hash);
        let Parent::Entry(above) = entry.parent else {
            return None;
        };
        if let Some(above) = self.by_page[above.page.0 as usize].as_mut() {
            above.children.remove(&page);
        }
        Some(above.page)
    }

    fn entry(&self, page: PageIndex) -> Option<&Entry> {
        self.by_page.get(page.0 as usize)?.as_ref()
    }
}
