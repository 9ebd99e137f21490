//! How fast memory is read: from which level of it depends on the size.

use std::time::Duration;

#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use super::{on_all, portable};
use crate::{EngineError, Isa, cpu::memory::Mapping};

/// Parts that one thread reads side by side.
pub(super) const STREAMS: usize = 4;
/// Bytes of one stream before the next one's turn.
pub(super) const STEP: usize = 512;
/// Bytes ahead of what is read to fetch into the cache.
#[cfg(target_arch = "x86_64")]
pub(super) const AHEAD: usize = 2048;

/// Least time of one measurement; large sizes take several passes longer.
const WINDOW: Duration = Duration::from_millis(30);

/// Memory in huge pages (where the system has them) to be read.
#[derive(Debug)]
pub struct ReadCeiling {
    mapping: Mapping,
    bytes: usize,
}

impl ReadCeiling {
    /// Takes `bytes` of memory and fills it, so that pages are really there.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub fn new(bytes: usize) -> Result<Self, EngineError> {
        let mapping = Mapping::new(bytes).map_err(|source| EngineError::System {
            what: format!("{bytes} bytes of memory to read"),
            source,
        })?;
        // SAFETY: the mapping has at least `bytes` bytes, and nothing else uses it.
        unsafe { mapping.base.as_ptr().write_bytes(1, bytes) };
        Ok(Self { mapping, bytes })
    }

    /// Bytes per second at which `threads` threads together read the first `bytes`, again and again;
    /// at most all there are.
    pub fn measure(&self, bytes: usize, threads: usize) -> f64 {
        // SAFETY: mapped and filled by `new`, never written again.
        let data = unsafe {
            std::slice::from_raw_parts(self.mapping.base.as_ptr(), self.bytes.min(bytes))
        };
        let share = data.len() / threads / (STREAMS * STEP) * (STREAMS * STEP);
        if share == 0 {
            return 0.0;
        }
        on_all(threads, WINDOW, |thread| {
            std::hint::black_box(read(&data[thread * share..][..share]));
            share as f64
        })
    }
}

/// Reads all of `data`, at least one step per stream, with the best loads there are.
fn read(data: &[u8]) -> u64 {
    match Isa::detect() {
        // SAFETY: detected; in both arms.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512::read(data) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => unsafe { avx2::read(data) },
        _ => portable::read(data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_reading_sees_every_byte() {
        let mut data = vec![0_u8; 3 * STREAMS * STEP];
        for at in (0..data.len()).step_by(61) {
            data[at] = 1 << (at % 8);
            let found = [
                portable::read(&data),
                read(&data),
                #[cfg(target_arch = "x86_64")]
                if Isa::available().contains(&Isa::Avx2) {
                    // SAFETY: AVX2 is there.
                    unsafe { avx2::read(&data) }
                } else {
                    1
                },
            ];
            assert!(found.iter().all(|bits| *bits != 0), "byte {at}: {found:?}");
            data[at] = 0;
        }
    }

    #[test]
    fn reading_has_a_rate_for_any_size_and_number_of_threads() {
        let ceiling = ReadCeiling::new(1 << 20).expect("a megabyte");
        for (bytes, threads) in [(1 << 20, 1), (1 << 18, 2), (1 << 30, 3)] {
            let rate = ceiling.measure(bytes, threads);
            assert!(
                rate.is_finite() && rate > 1e6,
                "{bytes} × {threads}: {rate}"
            );
        }
        assert!(
            ceiling.measure(100, 1).abs() < f64::EPSILON,
            "nothing to read"
        );
        assert!(ReadCeiling::new(usize::MAX).is_err(), "more than there is");
    }
}
