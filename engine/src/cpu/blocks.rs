//! How the rows of a step of many are divided into blocks, each of which one thread takes through several
//! operations.
//!
//! A block's values stay in a core's second-level cache from one operation to the next, and threads wait
//! for each other only where a row needs another one's results. For that each thread reads all weights:
//! with few rows, or with weights that no cache holds, that would cost more than it saves.
//!
//! It must not know the operations.

use std::ops::Range;

/// Most rows of a block, if they are even in number: four tiles of the kernels.
const MOST_ROWS: usize = 40;
/// Rows of each thread from which on blocks are worth it.
const LEAST_ROWS: usize = 24;
/// Widest input of a product of a model whose layers stay in the last cache while all blocks pass.
const WIDEST: usize = 3_072;

/// Blocks of about equal size, as many for each thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    rows: usize,
    count: usize,
}

impl Blocks {
    /// Blocks of `rows` rows for `threads` threads and products whose widest input has `widest` columns;
    /// `None` if operations are better divided one by one.
    pub(super) fn of(rows: usize, threads: usize, widest: usize) -> Option<Self> {
        let each = rows.div_ceil(threads).div_ceil(MOST_ROWS);
        let many = rows >= LEAST_ROWS * threads;
        (many && widest <= WIDEST).then_some(Self {
            rows,
            count: threads * each,
        })
    }

    /// Most rows, of up to `rows`, that are not divided into blocks.
    pub(super) fn most_without(rows: usize, threads: usize, widest: usize) -> usize {
        match Self::of(rows, threads, widest) {
            Some(_) => LEAST_ROWS * threads - 1,
            None => rows,
        }
    }

    /// Most rows of a block of up to `rows` rows; none if there are no blocks.
    pub(super) fn most_of_one(rows: usize, threads: usize, widest: usize) -> usize {
        // The last block may have an odd number of rows.
        Self::of(rows, threads, widest).map_or(0, |_| MOST_ROWS + 1)
    }

    /// Number of blocks.
    pub(super) fn count(self) -> usize {
        self.count
    }

    /// Rows of a block; an even number, as neighbours are written to pages together, but for the last.
    pub(super) fn rows(self, block: usize) -> Range<usize> {
        let edge = |block: usize| {
            if block == self.count {
                return self.rows;
            }
            self.rows * block / self.count / 2 * 2
        };
        edge(block)..edge(block + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_all_rows_once_and_none_is_too_large() {
        for threads in 1..9 {
            for rows in 1..2_000 {
                let Some(blocks) = Blocks::of(rows, threads, WIDEST) else {
                    assert!(rows <= Blocks::most_without(2_000, threads, WIDEST));
                    continue;
                };
                let mut next = 0;
                for block in 0..blocks.count() {
                    let range = blocks.rows(block);
                    assert_eq!(range.start, next, "{rows} rows, {threads} threads");
                    assert!(range.start.is_multiple_of(2) && !range.is_empty());
                    assert!(range.len() <= Blocks::most_of_one(rows, threads, WIDEST));
                    next = range.end;
                }
                assert_eq!(next, rows);
            }
        }
        assert!(Blocks::of(512, 2, WIDEST + 1).is_none());
        assert_eq!(Blocks::most_without(512, 2, WIDEST + 1), 512);
    }
}
