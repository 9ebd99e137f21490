//! Entries that were skipped and told, so that each is told once. It must not know what is wrong with them.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

/// By hashes of keys: keys may be long, and others choose them.
#[derive(Debug, Default)]
pub(super) struct Told {
    hasher: RandomState,
    entries: HashMap<u64, Entry>,
    /// Number of the full read that goes on, or of the last one.
    read: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    revision: i64,
    met_in: u64,
}

impl Told {
    /// Notes an entry as of a revision; whether it has not been told. Beyond `most` entries all are
    /// forgotten: they may be told again, which is better than silence about what comes.
    pub(super) fn is_news(&mut self, key: &[u8], revision: i64, most: usize) -> bool {
        if self.entries.len() >= most {
            self.entries.clear();
        }
        let met_in = self.read;
        let entry = Entry { revision, met_in };
        let known = self.entries.insert(self.hasher.hash_one(key), entry);
        known.is_none_or(|known| known.revision != revision)
    }

    /// This entry is skipped no more, or is gone.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.entries.remove(&self.hasher.hash_one(key));
    }

    /// From here on everything is met that there is.
    pub(super) fn begin_read(&mut self) {
        self.read += 1;
    }

    /// What was not met is not there any more.
    pub(super) fn end_read(&mut self) {
        let read = self.read;
        self.entries.retain(|_, entry| entry.met_in == read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4;

    #[test]
    fn an_entry_is_told_once_as_long_as_it_stays() {
        let mut told = Told::default();
        assert!(told.is_news(b"a", 1, MOST));
        assert!(!told.is_news(b"a", 1, MOST));
        assert!(told.is_news(b"a", 2, MOST), "it was written anew");
        told.begin_read();
        assert!(!told.is_news(b"a", 2, MOST), "read again");
        assert!(told.is_news(b"b", 3, MOST));
        told.end_read();
        told.begin_read();
        assert!(!told.is_news(b"b", 3, MOST));
        told.end_read();
        assert_eq!(told.entries.len(), 1, "a is gone");
        told.forget(b"b");
        assert!(told.is_news(b"b", 3, MOST));
    }

    #[test]
    fn what_comes_after_very_many_is_told_too() {
        let mut told = Told::default();
        for key in 0..100_u8 {
            assert!(told.is_news(&[key], 1, MOST));
            assert!(told.entries.len() <= MOST);
        }
    }
}
