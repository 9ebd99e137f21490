//! The one source of randomness of a simulated run.
//!
//! Ids, secrets, jitter and placement draws, the order of hash maps and the fairness of `select!` all end
//! at the C library's `getrandom`. This binary brings its own, which repeats after [`seed`]; so nothing in
//! the product has to know that it is being simulated. One run per process, on one thread: two would
//! share the stream. It must not know what is drawn.
#![allow(unsafe_code)] // Stands in for a C function.

use std::ffi::{c_uint, c_void};
use std::io::Read as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// State of the stream; zero until it is seeded.
static STATE: AtomicU64 = AtomicU64::new(0);

/// From now on everything drawn in this process follows from `seed`.
pub fn seed(seed: u64) {
    STATE.store(mix(seed ^ 0x6a09_e667_f3bc_c909) | 1, Ordering::Relaxed);
}

/// A generator of the simulation's own, apart from what the product draws.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream called `name` of a seed.
    pub fn named(seed: u64, name: &str) -> Self {
        let salt = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            mix(hash ^ u64::from(byte))
        });
        Self(mix(seed) ^ salt)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 to below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// From `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// A bijection of 64 bits in which every bit of the input changes half of the output.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `bytes` from the stream, or from the system before it is seeded. False: the system refuses.
fn fill(bytes: &mut [u8]) -> bool {
    if STATE.load(Ordering::Relaxed) == 0 {
        let device = std::fs::File::open("/dev/urandom");
        return device.is_ok_and(|mut device| device.read_exact(bytes).is_ok());
    }
    for word in bytes.chunks_mut(8) {
        let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        word.copy_from_slice(&mix(state).to_le_bytes()[..word.len()]);
    }
    true
}

/// See getrandom(2).
///
/// # Safety
/// `buffer` must point to `length` writable bytes, as for the function that this stands in for.
// SAFETY: no other symbol of this program has the name; the linker prefers it to the C library's, whose
// signature it has.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    if length == 0 {
        return 0;
    }
    // SAFETY: the caller's promise, which is that of the C function.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    if fill(bytes) {
        length.cast_signed()
    } else {
        -1
    }
}
