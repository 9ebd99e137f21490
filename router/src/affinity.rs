//! What the router remembers of recent hand-offs: which worker holds which prefix.
//!
//! A prefix is known by a hash chained over whole pages, keyed by fingerprint and salt. It is a
//! guess (workers evict on their own) and only ever a preference. It must not know loads.

use std::collections::{HashMap, VecDeque};

use baton_cluster::MemberKey;

/// Workers remembered per prefix.
const WORKERS_PER_PREFIX: usize = 4;

/// Hashes of a sequence's page-aligned prefixes, shortest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct PrefixHashes {
    hashes: Vec<u128>,
    page_size: usize,
}

impl PrefixHashes {
    pub(crate) fn new(digest: &[u8; 32], page_size: u32, salt: &[u8], ids: &[u32]) -> Self {
        let page_size = page_size.max(1) as usize;
        let mut chained = *blake3::Hasher::new()
            .update(digest)
            .update(&(salt.len() as u64).to_le_bytes())
            .update(salt)
            .finalize()
            .as_bytes();
        let mut hashes = Vec::with_capacity(ids.len() / page_size);
        for page in ids.chunks_exact(page_size) {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&chained);
            for id in page {
                hasher.update(&id.to_le_bytes());
            }
            chained = *hasher.finalize().as_bytes();
            let mut short = [0; 16];
            short.copy_from_slice(&chained[..16]);
            hashes.push(u128::from_le_bytes(short));
        }
        Self { hashes, page_size }
    }
}

#[derive(Debug)]
struct Held {
    /// Most recent last.
    workers: Vec<MemberKey>,
    used: u64,
}

/// A bounded record of prefixes, least recently used out first.
#[derive(Debug)]
pub(crate) struct PrefixRecord {
    held: HashMap<u128, Held>,
    /// Uses in order; an entry whose stamp is not its prefix's last use is skipped.
    uses: VecDeque<(u64, u128)>,
    clock: u64,
    capacity: usize,
}

impl PrefixRecord {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            held: HashMap::new(),
            uses: VecDeque::new(),
            clock: 0,
            capacity: capacity.max(1),
        }
    }

    /// Notes that a worker holds all these prefixes.
    pub(crate) fn note(&mut self, prefixes: &PrefixHashes, worker: &MemberKey) {
        for &hash in &prefixes.hashes {
            self.clock += 1;
            let used = self.clock;
            let held = self.held.entry(hash).or_insert_with(|| Held {
                workers: Vec::with_capacity(1),
                used,
            });
            held.used = used;
            held.workers.retain(|known| known != worker);
            if held.workers.len() == WORKERS_PER_PREFIX {
                held.workers.remove(0);
            }
            held.workers.push(worker.clone());
            self.uses.push_back((used, hash));
        }
        self.evict();
    }

    /// Tokens of the longest prefix that each worker holds.
    pub(crate) fn lookup(&self, prefixes: &PrefixHashes) -> HashMap<MemberKey, u32> {
        let mut found = HashMap::new();
        for (pages, hash) in (1..).zip(&prefixes.hashes) {
            // A page without its predecessors is of no use.
            let Some(held) = self.held.get(hash) else {
                break;
            };
            for worker in &held.workers {
                found.insert(worker.clone(), (pages * prefixes.page_size) as u32);
            }
        }
        found
    }

    fn evict(&mut self) {
        while self.held.len() > self.capacity || self.uses.len() > 4 * self.capacity {
            let Some((used, hash)) = self.uses.pop_front() else {
                return;
            };
            if self.held.get(&hash).is_some_and(|held| held.used == used) {
                self.held.remove(&hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::ids::{Incarnation, WorkerId};

    use super::*;

    fn key(id: &str) -> MemberKey {
        (WorkerId::new(id).unwrap(), Incarnation(1))
    }

    fn hashes(salt: &[u8], ids: &[u32]) -> PrefixHashes {
        PrefixHashes::new(&[7; 32], 4, salt, ids)
    }

    #[test]
    fn the_longest_common_prefix_of_whole_pages_is_found() {
        let mut record = PrefixRecord::new(100);
        let ids: Vec<u32> = (0..20).collect();
        record.note(&hashes(b"", &ids), &key("a"));
        record.note(&hashes(b"", &ids[..8]), &key("b"));
        let mut other = ids.clone();
        other[13] = 99;
        let found = record.lookup(&hashes(b"", &other));
        assert_eq!(found, HashMap::from([(key("a"), 12), (key("b"), 8)]));
        assert!(record.lookup(&hashes(b"salt", &ids)).is_empty());
        assert!(record.lookup(&hashes(b"", &ids[1..])).is_empty());
    }

    #[test]
    fn the_record_is_bounded_and_forgets_the_oldest() {
        let mut record = PrefixRecord::new(8);
        let prompt = |n: u32| (n * 100..n * 100 + 16).collect::<Vec<u32>>();
        for n in 0..50 {
            record.note(&hashes(b"", &prompt(n)), &key("a"));
            // Used again and again: stays.
            record.note(&hashes(b"", &prompt(1000)), &key("b"));
            assert!(record.held.len() <= 8 && record.uses.len() <= 32);
        }
        assert_eq!(
            record.lookup(&hashes(b"", &prompt(1000))),
            HashMap::from([(key("b"), 16)])
        );
        assert!(record.lookup(&hashes(b"", &prompt(0))).is_empty());
        for n in 0..10 {
            record.note(&hashes(b"", &prompt(1000)), &key(&format!("w{n}")));
        }
        assert_eq!(
            record.lookup(&hashes(b"", &prompt(1000))).len(),
            WORKERS_PER_PREFIX
        );
    }
}
