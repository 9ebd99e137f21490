//! Philox4x32-10: randomness as a pure function of a key and a counter.
//!
//! The generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). There is
//! no state to carry, so a draw cannot depend on what was drawn before or beside it. It must not know
//! of logits.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four random words for one counter under one key.
pub(crate) fn philox4x32(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [mut k0, mut k1] = key;
    let mut c = counter;
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
        c = [
            (b >> 32) as u32 ^ c[1] ^ k0,
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ k1,
            a as u32,
        ];
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    c
}

/// The uniform number in `[0, 1)` (24 bits) that belongs to (seed, choice, position).
pub(crate) fn uniform(seed: u64, choice: u32, position: u32) -> f32 {
    let words = philox4x32([seed as u32, (seed >> 32) as u32], [position, choice, 0, 0]);
    (words[0] >> 8) as f32 * (1.0 / 16_777_216.0)
}
