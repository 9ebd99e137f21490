//! The prefix cache never gives one prompt another's pages, whatever the hash.

use std::sync::Arc;

use baton_kv_cache::{Blake3Hasher, PageHash, PageHasher};

use super::rig::{Rig, config, params, prompt, spec};
use crate::AfterPrompt;

/// A hash of four bits.
struct FourBits;

impl PageHasher for FourBits {
    fn hash(&self, encoded: &[u8]) -> PageHash {
        let mut hash = [0; 32];
        hash[0] = Blake3Hasher.hash(encoded).0[0] & 15;
        PageHash(hash)
    }
}

#[test]
fn sch_09_two_hundred_prompts_with_a_hash_of_four_bits() {
    let mut rig = Rig::with_hasher(config(64, 4), Box::new(FourBits));
    for n in 0..200 {
        // Pages equal in tokens but with different parents are among them.
        let text = [prompt(n, 4), vec![7; 8], prompt(n, 3)].concat();
        let text = if n % 3 == 0 { text } else { prompt(n, 17) };
        let ids = [(), ()].map(|()| {
            let id = rig.submit(&text, params(6));
            rig.step();
            id
        });
        rig.run_to_end();
        for id in ids {
            // `expected` knows no cache; the oracle checks what is in the pages.
            rig.assert_exact(id, &text, &params(6));
        }
    }
    assert!(rig.scheduler.counters.prefix_hit_tokens > 0);
}

#[test]
fn sch_10_salts_keep_tenants_apart() {
    let mut rig = Rig::new(config(64, 4));
    let text = prompt(1, 20);
    let salted = |rig: &mut Rig, salt: &[u8]| {
        let mut request = spec(rig.now, &text, params(2));
        request.cache_salt = Arc::from(salt);
        let id = rig.try_submit(request, AfterPrompt::Decode).expect("room");
        rig.run_to_end();
        rig.heard[&id].cached_tokens
    };
    assert_eq!(salted(&mut rig, b"a"), Some(0));
    assert_eq!(salted(&mut rig, b"b"), Some(0));
    assert_eq!(salted(&mut rig, b""), Some(0));
    assert_eq!(salted(&mut rig, b"a"), Some(16));
}
