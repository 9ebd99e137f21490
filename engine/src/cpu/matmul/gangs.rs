//! Lists of the few tokens that have second digits: a search through all groups, made once for all panels
//! of a product.
//!
//! Knows nothing of weights.

use std::{mem::MaybeUninit, ops::Range};

use super::kernel::{GangList, SecondDigits};

/// Tokens of a gang.
pub(super) const GANG: usize = 4;
/// Most gangs of a list.
const MOST: usize = 512;

/// Some tokens that have second digits in the same group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gang {
    pub(super) group: u32,
    /// Tokens of the run; the last one stands in for those that are missing.
    pub(super) tokens: [u16; GANG],
}

/// Gangs of a run of tokens, in ascending order of groups.
pub(super) struct Gangs {
    list: [MaybeUninit<Gang>; MOST],
}

impl Gangs {
    /// An empty list.
    pub(super) fn new() -> Self {
        Self {
            list: [const { MaybeUninit::uninit() }; MOST],
        }
    }

    /// Makes this the list of `rows`; `None` if it has no room for them.
    ///
    /// # Safety
    /// The rows exist, have `groups` groups, and are not written meanwhile.
    pub(super) unsafe fn fill(
        &mut self,
        second: SecondDigits,
        rows: Range<usize>,
        groups: usize,
    ) -> Option<GangList> {
        let mut count = 0;
        for group in 0..groups {
            // SAFETY: by the contract.
            let mut marked = unsafe { second.marked(rows.clone(), group) };
            while let Some(first) = marked.next() {
                let mut last = u16::try_from(first).ok()?;
                let mut tokens = [last; GANG];
                for token in &mut tokens[1..] {
                    if let Some(next) = marked.next() {
                        last = u16::try_from(next).ok()?;
                    }
                    *token = last;
                }
                let group = u32::try_from(group).ok()?;
                self.list.get_mut(count)?.write(Gang { group, tokens });
                count += 1;
            }
        }
        Some(GangList {
            first: self.list.as_ptr().cast(),
            count,
        })
    }
}
