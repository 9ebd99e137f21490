//! A million random operations on a small pool, beside a model that is too simple to be wrong: it
//! remembers what tokens each page must hold.

use std::sync::Arc;

use super::FourBits;
use crate::{
    Blake3Hasher, Hold, Indexed, PageHasher, PageIndex, PagePool, PageTable, PrefixCursor,
    PrefixDomain,
};

const PAGES: u32 = 16;
const PAGE: usize = 4;
const OPERATIONS: u32 = 1_000_000;

/// splitmix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// One sequence: its table, the tokens it has written, its place in the index.
struct Reader {
    table: PageTable,
    tokens: Vec<u32>,
    cursor: PrefixCursor,
    salt: usize,
}

struct World {
    pool: PagePool,
    rng: Rng,
    domains: Vec<PrefixDomain>,
    readers: Vec<Reader>,
    /// Readers that have given their first page back and end later.
    ending: Vec<Reader>,
    /// What is physically in each page.
    memory: Vec<Vec<Option<u32>>>,
    hits: u64,
    copies: u64,
}

impl World {
    fn new(seed: u64, hasher: Box<dyn PageHasher>) -> Self {
        let domain = |salt: &[u8]| PrefixDomain {
            fingerprint_digest: [7; 32],
            salt: Arc::from(salt),
        };
        Self {
            pool: PagePool::new(PAGES, PAGE as u32, hasher),
            rng: Rng(seed),
            domains: vec![domain(b""), domain(b"tenant")],
            readers: Vec::new(),
            ending: Vec::new(),
            memory: vec![vec![None; PAGE]; PAGES as usize],
            hits: 0,
            copies: 0,
        }
    }

    fn operate(&mut self) {
        match self.rng.below(10) {
            0 | 1 => self.start(),
            2..=5 => self.append(),
            6 => self.fork(),
            7 => self.convert(),
            _ => self.end(),
        }
    }

    /// A prompt of few possible tokens, so that prefixes recur; lengths often are whole pages.
    fn start(&mut self) {
        if self.readers.len() >= 6 {
            return;
        }
        let length = match self.rng.below(3) {
            0 => PAGE * (1 + self.rng.below(4)),
            _ => 1 + self.rng.below(4 * PAGE),
        };
        let tokens: Vec<u32> = (0..length).map(|at| self.prompt_token(at)).collect();
        let salt = self.rng.below(2);
        let most = (length as u32 - 1) / PAGE as u32;
        let (mut table, cursor) =
            self.pool
                .prefix_hit(&self.domains[salt], &tokens, most, Hold::Sequence);
        self.hits += u64::from(table.len());
        let held = table.len() as usize * PAGE;
        for (at, token) in tokens[..held].iter().enumerate() {
            let page = table.pages()[at / PAGE];
            assert_eq!(self.read(page, at % PAGE), Some(*token), "stale prefix");
        }
        let missing = length.div_ceil(PAGE) as u32 - table.len();
        let before = (table.pages().to_vec(), self.pool.ledger());
        if table.grow(missing).is_err() {
            assert!(missing > before.1.available());
            assert_eq!(table.pages(), before.0, "all or none");
            return;
        }
        let mut reader = Reader {
            table,
            tokens: tokens[..held].to_vec(),
            cursor,
            salt,
        };
        for token in &tokens[held..] {
            self.write(&mut reader, *token);
        }
        self.readers.push(reader);
    }

    fn prompt_token(&mut self, at: usize) -> u32 {
        if at.is_multiple_of(PAGE) {
            self.rng.below(3) as u32
        } else {
            0
        }
    }

    /// A decode step: the last page may be shared, then it is copied first.
    fn append(&mut self) {
        let Some(mut reader) = self.take_reader() else {
            return;
        };
        let at = reader.tokens.len();
        let has_room = if at.is_multiple_of(PAGE) {
            reader.table.len() as usize > at / PAGE || reader.table.grow(1).is_ok()
        } else {
            self.unshare(&mut reader, at / PAGE)
        };
        if has_room {
            let token = self.prompt_token(at);
            self.write(&mut reader, token);
        } else {
            assert_eq!(self.pool.ledger().available(), 0);
        }
        self.readers.push(reader);
    }

    fn unshare(&mut self, reader: &mut Reader, at: usize) -> bool {
        let shared = self.holders(reader, reader.table.pages()[at]) > 1;
        assert_eq!(reader.table.is_shared(at as u32), shared);
        match reader.table.unshare(at as u32) {
            Ok(Some((from, to))) => {
                assert!(shared, "copied although nobody shares it");
                self.copies += 1;
                self.memory[to.0 as usize] = self.memory[from.0 as usize].clone();
                true
            }
            Ok(None) => {
                assert!(!shared, "a write to a shared page must copy");
                true
            }
            Err(_) => false,
        }
    }

    fn fork(&mut self) {
        if self.readers.len() >= 6 {
            return;
        }
        let Some(reader) = self.take_reader() else {
            return;
        };
        // As after a prompt: the table covers what has been written, nothing more.
        self.readers.push(Reader {
            table: reader.table.fork(),
            tokens: reader.tokens.clone(),
            cursor: reader.cursor.clone(),
            salt: reader.salt,
        });
        self.readers.push(reader);
    }

    fn convert(&mut self) {
        let Some(mut reader) = self.take_reader() else {
            return;
        };
        let holds = [Hold::Sequence, Hold::Grant, Hold::Quarantine];
        reader.table.convert(holds[self.rng.below(3)]);
        self.readers.push(reader);
    }

    fn end(&mut self) {
        if let Some(mut reader) = self.take_reader()
            && self.rng.below(4) == 0
        {
            let first = PAGE.min(reader.tokens.len());
            reader.table.release_front(1);
            reader.tokens.drain(..first);
            self.ending.push(reader);
        }
        if self.ending.len() > 2 {
            self.ending.remove(0);
        }
    }

    fn write(&mut self, reader: &mut Reader, token: u32) {
        let at = reader.tokens.len();
        let page = reader.table.pages()[at / PAGE];
        assert_eq!(self.holders(reader, page), 1, "write to a shared page");
        self.memory[page.0 as usize][at % PAGE] = Some(token);
        reader.tokens.push(token);
        while !reader.cursor.is_stopped() {
            let next = reader.cursor.pages() as usize;
            let Some(tokens) = reader.tokens.get(next * PAGE..(next + 1) * PAGE) else {
                break;
            };
            let page = reader.table.pages()[next];
            // Restarted at most once per call: the root is always there.
            if self.pool.index_page(&mut reader.cursor, tokens, page) == Indexed::Stopped {
                break;
            }
        }
    }

    fn take_reader(&mut self) -> Option<Reader> {
        if self.readers.is_empty() {
            return None;
        }
        let at = self.rng.below(self.readers.len());
        Some(self.readers.swap_remove(at))
    }

    /// References to a page by the model's count; `reader` is not in the list.
    fn holders(&self, reader: &Reader, page: PageIndex) -> usize {
        let of = |r: &Reader| r.table.pages().iter().filter(|p| **p == page).count();
        of(reader) + self.all().map(of).sum::<usize>()
    }

    fn all(&self) -> impl Iterator<Item = &Reader> {
        self.readers.iter().chain(&self.ending)
    }

    fn read(&self, page: PageIndex, at: usize) -> Option<u32> {
        self.memory[page.0 as usize][at]
    }

    /// Ledger, references and the content of every held page against the model.
    fn check(&self) {
        let ledger = self.pool.ledger();
        assert!(ledger.is_balanced(), "{ledger:?}");
        let mut strongest: Vec<Option<Hold>> = vec![None; PAGES as usize];
        for reader in self.all() {
            for page in reader.table.pages() {
                let at = &mut strongest[page.0 as usize];
                let hold = reader.table.hold();
                if at.is_none_or(|other| (hold as usize) < other as usize) {
                    *at = Some(hold);
                }
            }
        }
        let count = |hold| strongest.iter().filter(|at| **at == hold).count() as u32;
        assert_eq!(ledger.live, count(Some(Hold::Sequence)));
        assert_eq!(ledger.granted, count(Some(Hold::Grant)));
        assert_eq!(ledger.quarantined, count(Some(Hold::Quarantine)));
        assert_eq!(ledger.available(), count(None));
    }

    fn check_contents(&self) {
        self.pool.lock().audit();
        for reader in self.all() {
            for (at, token) in reader.tokens.iter().enumerate() {
                let page = reader.table.pages()[at / PAGE];
                assert_eq!(self.read(page, at % PAGE), Some(*token));
            }
        }
    }
}

fn run(seed: u64, operations: u32, hasher: Box<dyn PageHasher>) -> World {
    println!("seed {seed}");
    let mut world = World::new(seed, hasher);
    for operation in 0..operations {
        world.operate();
        world.check();
        if operation % 64 == 0 {
            world.check_contents();
        }
    }
    world.readers.clear();
    world.ending.clear();
    world.check();
    assert!(world.pool.ledger().is_idle());
    world
}

#[test]
fn sch_11_a_million_operations_against_a_shadow_model() {
    let world = run(11, OPERATIONS, Box::new(Blake3Hasher));
    let evicted = world.pool.evicted();
    assert!(world.hits > 1000 && world.copies > 1000 && evicted > 1000);
}

#[test]
fn sch_11_the_same_with_a_hash_of_four_bits() {
    let world = run(12, OPERATIONS / 5, Box::new(FourBits));
    assert!(world.hits > 1000, "{}", world.hits);
}
