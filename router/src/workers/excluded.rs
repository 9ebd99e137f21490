//! The workers that one request has been let down by.
//!
//! It must not know how others are chosen.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use baton_cluster::MemberKey;

/// Hand-offs that may fail before a request does without.
const MAX_HAND_OFFS: u32 = 2;

/// Workers that this request does not go back to for now.
#[derive(Debug, Default)]
pub(crate) struct Excluded {
    /// They failed.
    pub(crate) failed: HashSet<MemberKey>,
    /// They refused for now, with their hints.
    pub(crate) busy: HashMap<MemberKey, Option<Duration>>,
    /// Hand-offs that have failed, in all rounds: workers that are well may not reach each other.
    pub(crate) hand_offs: u32,
    /// This is a further round.
    again: bool,
}

impl Excluded {
    pub(super) fn has(&self, key: &MemberKey) -> bool {
        self.failed.contains(key) || self.busy.contains_key(key)
    }

    /// Whether the request has met a refusal or failure, and so waits for quarantines to end.
    pub(super) fn is_let_down(&self) -> bool {
        self.again || !self.failed.is_empty() || !self.busy.is_empty()
    }

    /// Whether another hand-off is not worth trying: a decode worker can prefill alone.
    pub(crate) fn shuns_hand_offs(&self) -> bool {
        self.hand_offs >= MAX_HAND_OFFS
    }

    /// Leaves those alone too that another search has asked in vain.
    pub(crate) fn add(&mut self, others: Self) {
        self.failed.extend(others.failed);
        self.busy.extend(others.busy);
        self.again |= others.again;
    }

    /// Forgets which workers refused and failed, for another round.
    pub(crate) fn clear(&mut self) {
        self.failed.clear();
        self.busy.clear();
        self.again = true;
    }
}
