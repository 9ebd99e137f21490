//! The workers that one request has been let down by.
//!
//! It must not know how others are chosen.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use baton_cluster::MemberKey;

/// Workers that this request does not go back to for now.
#[derive(Debug, Default)]
pub(crate) struct Excluded {
    /// They failed.
    pub(crate) failed: HashSet<MemberKey>,
    /// They refused for now, with their hints.
    pub(crate) busy: HashMap<MemberKey, Option<Duration>>,
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

    /// Forgets all refusals and failures, for another round.
    pub(crate) fn clear(&mut self) {
        self.failed.clear();
        self.busy.clear();
        self.again = true;
    }
}
