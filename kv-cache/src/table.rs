//! A sequence's ordered pages. The table owns one reference to each and gives it back when dropped.
//! It must not know what tokens the pages hold.

use crate::page::{Generation, Hold, PageIndex};
use crate::pool::{OutOfPages, PagePool};

/// Ordered pages, each referenced once by this table.
#[derive(Debug)]
pub struct PageTable {
    pool: PagePool,
    hold: Hold,
    pages: Vec<PageIndex>,
}

impl PageTable {
    pub(crate) fn new(pool: PagePool, hold: Hold) -> Self {
        Self {
            pool,
            hold,
            pages: Vec::new(),
        }
    }

    /// The pages in order.
    pub fn pages(&self) -> &[PageIndex] {
        &self.pages
    }

    /// Number of pages.
    pub fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Why the pages are held.
    pub fn hold(&self) -> Hold {
        self.hold
    }

    /// The slots from page `from` on, with their generations.
    pub fn slots(&self, from: u32) -> Vec<(PageIndex, Generation)> {
        let state = self.pool.lock();
        let pages = self.pages.iter().skip(from as usize);
        pages.map(|&page| (page, state.generation(page))).collect()
    }

    /// Appends `count` fresh pages, all or none; adjacent ones where possible.
    ///
    /// # Errors
    /// Too few pages are free or evictable; the table is unchanged.
    pub fn grow(&mut self, count: u32) -> Result<(), OutOfPages> {
        let previous = self.pages.last().copied();
        self.pool
            .lock()
            .allocate(count, previous, self.hold, &mut self.pages)
    }

    /// Another table of the same pages, which are shared from now on.
    #[must_use]
    pub fn fork(&self) -> Self {
        let mut state = self.pool.lock();
        for &page in &self.pages {
            state.hold(page, self.hold);
        }
        drop(state);
        Self {
            pool: self.pool.clone(),
            hold: self.hold,
            pages: self.pages.clone(),
        }
    }

    /// Whether somebody else refers to page `at` too.
    pub fn is_shared(&self, at: u32) -> bool {
        self.pool.lock().references(self.pages[at as usize]) > 1
    }

    /// Makes page `at` this table's own before it is written: a shared page is replaced by a fresh
    /// one, and the caller copies the content `(from, to)` before anything else happens to `from`.
    ///
    /// # Errors
    /// The page is shared and no page is free or evictable; the table is unchanged.
    pub fn unshare(&mut self, at: u32) -> Result<Option<(PageIndex, PageIndex)>, OutOfPages> {
        let from = self.pages[at as usize];
        let mut state = self.pool.lock();
        if state.references(from) <= 1 {
            return Ok(None);
        }
        let mut fresh = Vec::with_capacity(1);
        let previous = at.checked_sub(1).map(|above| self.pages[above as usize]);
        state.allocate(1, previous, self.hold, &mut fresh)?;
        let to = fresh[0];
        self.pages[at as usize] = to;
        state.release(from, self.hold);
        Ok(Some((from, to)))
    }

    /// Changes why all the pages are held.
    pub fn convert(&mut self, hold: Hold) {
        let mut state = self.pool.lock();
        for &page in &self.pages {
            state.convert(page, self.hold, hold);
        }
        drop(state);
        self.hold = hold;
    }

    /// Gives the first `count` pages back.
    pub fn release_front(&mut self, count: u32) {
        let count = (count as usize).min(self.pages.len());
        let mut state = self.pool.lock();
        for page in self.pages.drain(..count) {
            state.release(page, self.hold);
        }
    }

    pub(crate) fn push_held(&mut self, page: PageIndex) {
        self.pages.push(page);
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        if self.pages.is_empty() {
            return;
        }
        let mut state = self.pool.lock();
        for &page in &self.pages {
            state.release(page, self.hold);
        }
    }
}
