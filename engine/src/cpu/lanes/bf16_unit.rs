//! Whether this machine's bf16 unit rounds as two fused multiply-adds do.
//!
//! Its manuals say so for one maker's processors and nothing for others', so the unit is asked: if it
//! answers any of some thousand random products differently, it is not used and results are the same
//! bits all the same. Knows nothing of kernels.

use std::arch::x86_64::{__m512bh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_storeu_ps};
use std::sync::OnceLock;

use super::{LANES, Lanes, PortableLanes};

/// Vectors of pairs to compare.
const TRIALS: usize = 1_000;

/// Whether AVX-512 with VNNI and BF16 is there and the unit is exact; asked once.
pub(crate) fn is_exact() -> bool {
    static EXACT: OnceLock<bool> = OnceLock::new();
    *EXACT.get_or_init(|| {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512bf16")
            // SAFETY: the features are there.
            && unsafe { agrees() }
    })
}

/// # Safety
/// AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn agrees() -> bool {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..TRIALS).all(|trial| {
        // Exponents close together make every rounding count, wide ones make terms vanish.
        let spread = [2, 8, 24][trial % 3];
        let mut number = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let exponent = 127 - spread / 2 + (state >> 40) as u32 % spread;
            ((state >> 63) as u32) << 31 | exponent << 23 | (state & 0x7f_ffff) as u32
        };
        let mut pairs = || -> [[u16; 2]; LANES] {
            std::array::from_fn(|_| [(number() >> 16) as u16, (number() >> 16) as u16])
        };
        let (a, b) = (pairs(), pairs());
        let sums: [f32; LANES] = std::array::from_fn(|_| f32::from_bits(number()));
        let (mut theirs, mut ours) = ([0.0; LANES], [0.0; LANES]);
        // SAFETY: arrays of one vector each; the unit is there.
        unsafe {
            let product = _mm512_dpbf16_ps(
                _mm512_loadu_ps(sums.as_ptr()),
                std::mem::transmute::<[[u16; 2]; LANES], __m512bh>(a),
                std::mem::transmute::<[[u16; 2]; LANES], __m512bh>(b),
            );
            _mm512_storeu_ps(theirs.as_mut_ptr(), product);
            PortableLanes::load(sums.as_ptr())
                .dot_pairs(a, b)
                .store(ours.as_mut_ptr());
        }
        ours.map(f32::to_bits) == theirs.map(f32::to_bits)
    })
}
