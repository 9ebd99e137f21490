//! The free pages as runs of neighbours, so that an allocation gets adjacent pages where it can:
//! small pieces are what makes transfers slow. It must not know what pages hold.

use std::collections::{BTreeMap, BTreeSet};

/// Disjoint, non-touching runs of free pages.
#[derive(Debug, Default)]
pub(crate) struct FreeRuns {
    /// Start → length.
    by_start: BTreeMap<u32, u32>,
    /// (length, start), for the best fit.
    by_length: BTreeSet<(u32, u32)>,
}

impl FreeRuns {
    pub(crate) fn full(pages: u32) -> Self {
        let mut runs = Self::default();
        if pages > 0 {
            runs.add(0, pages);
        }
        runs
    }

    /// Gives a page back, joining it with its neighbours.
    pub(crate) fn insert(&mut self, page: u32) {
        let mut start = page;
        let mut length = 1;
        if let Some((&left, &left_length)) = self.by_start.range(..page).next_back()
            && left + left_length == page
        {
            self.remove(left, left_length);
            start = left;
            length += left_length;
        }
        if let Some(&right_length) = self.by_start.get(&(page + 1)) {
            self.remove(page + 1, right_length);
            length += right_length;
        }
        self.add(start, length);
    }

    /// Takes up to `count` pages in one run: right after `previous` if that is free, else from the
    /// shortest run that is long enough, else the longest run there is. `None` if nothing is free.
    pub(crate) fn take(&mut self, count: u32, previous: Option<u32>) -> Option<(u32, u32)> {
        let after = previous.and_then(|page| {
            let start = page + 1;
            self.by_start.get(&start).map(|&length| (start, length))
        });
        let (start, length) = after
            .or_else(|| self.by_length.range((count, 0)..).next().copied().map(swap))
            .or_else(|| self.by_length.last().copied().map(swap))?;
        let taken = count.min(length);
        self.remove(start, length);
        if taken < length {
            self.add(start + taken, length - taken);
        }
        Some((start, taken))
    }

    fn add(&mut self, start: u32, length: u32) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u32, length: u32) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

fn swap((length, start): (u32, u32)) -> (u32, u32) {
    (start, length)
}

#[cfg(test)]
mod tests {
    use super::FreeRuns;

    #[test]
    fn runs_join_and_split() {
        let mut runs = FreeRuns::full(8);
        assert_eq!(runs.take(3, None), Some((0, 3)));
        assert_eq!(runs.take(2, Some(2)), Some((3, 2)), "extends its own run");
        assert_eq!(runs.take(3, Some(2)), Some((5, 3)), "neighbour is taken");
        assert_eq!(runs.take(1, None), None);
        runs.insert(1);
        runs.insert(3);
        runs.insert(6);
        runs.insert(5);
        runs.insert(2);
        // Free: 1..=3 and 5..=6.
        assert_eq!(runs.take(2, None), Some((5, 2)), "best fit");
        assert_eq!(runs.take(4, None), Some((1, 3)), "the longest there is");
    }
}
