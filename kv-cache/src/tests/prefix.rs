//! Prefix hits, key domains, collisions, order of eviction.

use std::collections::HashSet;
use std::sync::Arc;

use super::FourBits;
use crate::hash::{page_hash, root_hash};
use crate::{
    Blake3Hasher, Hold, Indexed, PageHasher, PagePool, PageTable, PrefixCursor, PrefixDomain,
};

const PAGE: u32 = 4;

fn domain(fingerprint: u8, salt: &[u8]) -> PrefixDomain {
    PrefixDomain {
        fingerprint_digest: [fingerprint; 32],
        salt: Arc::from(salt),
    }
}

fn pool(pages: u32) -> PagePool {
    PagePool::new(pages, PAGE, Box::new(Blake3Hasher))
}

/// Fills a table with `tokens` (whole pages) and indexes it.
fn cache(pool: &PagePool, domain: &PrefixDomain, tokens: &[u32]) -> (PageTable, PrefixCursor) {
    let mut table = pool.table(Hold::Sequence);
    let mut cursor = pool.cursor(domain);
    table.grow(tokens.len() as u32 / PAGE).expect("room");
    for (at, page) in tokens.chunks_exact(PAGE as usize).enumerate() {
        pool.index_page(&mut cursor, page, table.pages()[at]);
    }
    (table, cursor)
}

fn hits(pool: &PagePool, domain: &PrefixDomain, tokens: &[u32]) -> u32 {
    let (table, _) = pool.prefix_hit(domain, tokens, u32::MAX, Hold::Sequence);
    table.len()
}

#[test]
fn sch_10_keys_of_different_domains_all_differ() {
    let hasher: &dyn PageHasher = &Blake3Hasher;
    // Fields move between salt and fingerprint, and the salt's end moves.
    let domains = [
        domain(b'a', b"bc"),
        domain(b'a', b"b"),
        domain(b'a', b""),
        domain(b'b', b"bc"),
        domain(b'a', b"bc\0"),
        domain(0, b"abc"),
        domain(0, b"ab"),
    ];
    let keys: HashSet<_> = domains.iter().map(|d| root_hash(hasher, d)).collect();
    assert_eq!(keys.len(), domains.len());

    let pool = pool(8);
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    drop(cache(&pool, &domains[0], &tokens));
    assert_eq!(hits(&pool, &domains[0], &tokens), 2);
    for other in &domains[1..] {
        assert_eq!(hits(&pool, other, &tokens), 0, "{other:?}");
    }
}

#[test]
fn sch_10_keys_are_lists_of_tagged_length_prefixed_fields() {
    let field = |tag: u8, value: &[u8]| {
        let length = (value.len() as u64).to_le_bytes();
        [&[tag][..], &length, value].concat()
    };
    let hash = |fields: &[Vec<u8>]| *blake3::hash(&fields.concat()).as_bytes();
    let root = root_hash(&Blake3Hasher, &domain(3, b"salt"));
    let fields = [
        field(1, b"baton prefix/1"),
        field(2, &[3; 32]),
        field(3, b"salt"),
    ];
    assert_eq!(root.0, hash(&fields));
    let page = page_hash(&Blake3Hasher, root, &[1, 0x0203_0405]);
    let tokens = [1, 0, 0, 0, 5, 4, 3, 2];
    let fields = [field(4, b""), field(5, &root.0), field(6, &tokens)];
    assert_eq!(page.0, hash(&fields));
}

#[test]
fn sch_09_a_colliding_hash_is_a_miss() {
    let pool = PagePool::new(400, PAGE, Box::new(FourBits));
    let domain = domain(1, b"");
    let prompt = |n: u32| [n, n + 1, n + 2, n + 3, 7, 7, 7, 7];
    let mut kept = Vec::new();
    for n in 0..200 {
        // The second page has equal tokens everywhere, only its parent differs.
        kept.push(cache(&pool, &domain, &prompt(n)));
        let (hit, _) = pool.prefix_hit(&domain, &prompt(n), 2, Hold::Sequence);
        let own = kept[n as usize].0.pages();
        for (at, page) in hit.pages().iter().enumerate() {
            assert_eq!(*page, own[at], "prompt {n} got another prompt's page");
        }
    }
    let stopped = kept.iter().filter(|(_, cursor)| cursor.is_stopped());
    assert!(stopped.count() >= 184, "at most 16 keys exist");
    let indexed: u32 = kept.iter().map(|(_, cursor)| cursor.pages()).sum();
    assert!(indexed > 4, "some prompts are in the index");
}

#[test]
fn leaves_are_evicted_before_parents_and_the_longest_unused_first() {
    let pool = pool(4);
    let domain = domain(1, b"");
    let (long, short) = ([1, 1, 1, 1, 2, 2, 2, 2], [3, 3, 3, 3]);
    drop(cache(&pool, &domain, &long));
    drop(cache(&pool, &domain, &short));
    assert_eq!(pool.ledger().cached, 3);
    let mut table = pool.table(Hold::Sequence);
    table.grow(2).expect("one free, one evicted");
    assert_eq!(pool.evicted(), 1);
    assert_eq!(
        hits(&pool, &domain, &long),
        1,
        "the tail went, the head stays"
    );
    assert_eq!(hits(&pool, &domain, &short), 1);
    // The look-ups above made `short` the latest used.
    table.grow(1).expect("one more");
    assert_eq!(hits(&pool, &domain, &long), 0);
    assert_eq!(hits(&pool, &domain, &short), 1);
    table.grow(1).expect("the last one");
    assert_eq!(hits(&pool, &domain, &short), 0);
    assert!(table.grow(1).is_err());
}

#[test]
fn a_live_page_chained_to_anothers_prefix_leaves_the_index_with_it() {
    let pool = pool(4);
    let domain = domain(1, b"");
    let (first, second) = ([1, 1, 1, 1], [1, 1, 1, 1, 2, 2, 2, 2]);
    let (a, _) = cache(&pool, &domain, &first);
    // B computed the same first page; its second page is chained to A's entry.
    let (b, mut cursor) = cache(&pool, &domain, &second);
    drop(a);
    assert_eq!(pool.ledger().cached, 1, "A's page");
    assert_eq!(hits(&pool, &domain, &second), 2);
    let mut table = pool.table(Hold::Sequence);
    table
        .grow(2)
        .expect("A's page is evictable although it has a child");
    pool.lock().audit();
    assert_eq!(hits(&pool, &domain, &second), 0);
    // B goes on: it finds its prefix gone and starts over with its own pages.
    let page = b.pages()[1];
    assert_eq!(
        pool.index_page(&mut cursor, &[9; 4], page),
        Indexed::Restarted
    );
    for (at, page) in second.chunks_exact(4).enumerate() {
        let indexed = pool.index_page(&mut cursor, page, b.pages()[at]);
        assert_eq!(indexed, Indexed::Advanced);
    }
    assert_eq!(hits(&pool, &domain, &second), 2);
    drop((b, table));
    assert!(pool.ledger().is_idle());
}

#[test]
fn a_shared_page_counts_once_and_live_wins() {
    let pool = pool(4);
    let domain = domain(1, b"");
    let tokens = [1, 1, 1, 1];
    let (live, _) = cache(&pool, &domain, &tokens);
    let (mut granted, _) = pool.prefix_hit(&domain, &tokens, 1, Hold::Grant);
    granted.grow(1).expect("room");
    assert_eq!((pool.ledger().live, pool.ledger().granted), (1, 1));
    assert_eq!(pool.freeable([&live]), 0, "the grant keeps it");
    drop(live);
    assert_eq!((pool.ledger().live, pool.ledger().granted), (0, 2));
    granted.release_front(1);
    granted.convert(Hold::Quarantine);
    assert_eq!((pool.ledger().cached, pool.ledger().quarantined), (1, 1));
    drop(granted);
    assert!(pool.ledger().is_idle() && pool.ledger().is_balanced());
}

#[test]
fn generations_rise_when_a_slot_changes_hands() {
    let pool = pool(1);
    let take = || {
        let mut table = pool.table(Hold::Grant);
        table.grow(1).expect("free");
        table.slots(0)[0]
    };
    let (first, second) = (take(), take());
    assert_eq!(first.0, second.0);
    assert!(second.1 > first.1);
}

#[test]
fn only_new_entries_count_as_indexed() {
    let pool = pool(8);
    let domain = domain(1, b"");
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    let first = cache(&pool, &domain, &tokens);
    assert_eq!(pool.indexed(), 2);
    let again = cache(&pool, &domain, &tokens);
    assert_eq!(pool.indexed(), 2, "the same content is there");
    assert_eq!(hits(&pool, &domain, &tokens), 2);
    drop((first, again));
    pool.table(Hold::Sequence).grow(8).expect("evicts");
    assert_eq!((pool.indexed(), pool.evicted()), (2, 2), "a total");
}
