//! The machine's own limits, so that a speed can be told as a share of what is possible.
//!
//! Arithmetic runs from registers in chains that do not wait for each other; reading runs through huge
//! pages in several streams at once. Both use the best instructions of the machine, on as many threads
//! as asked, all at the same time. A step's products run alone beside them. What is compared with what is
//! not known here.
#![allow(unsafe_code)] // The limits are measured with the instructions themselves.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
mod products;
mod reading;

use std::{
    sync::Barrier,
    time::{Duration, Instant},
};

pub use products::ProductWork;
pub use reading::ReadCeiling;

use crate::Isa;

/// How long one measurement takes: many times what starting the threads together costs.
const WINDOW: Duration = Duration::from_millis(20);

/// Turns of the inner loop in one call of a kernel: some tens of microseconds.
const TURNS: usize = 4096;

/// A kind of arithmetic that products and attention are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// Fused multiply-add of f32.
    F32,
    /// Dot products of bf16 into f32; where the machine has no such unit, what replaces it.
    Bf16,
    /// Dot products of 8-bit integers into 32-bit ones.
    Int8,
}

impl Arithmetic {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// Operations per second of `threads` threads together; a multiplication and its addition are two.
    pub fn measure(self, threads: usize) -> f64 {
        let kernel = self.kernel();
        on_all(threads, WINDOW, |_| {
            // SAFETY: `kernel` chose by what the machine has.
            (unsafe { kernel() }) as f64
        })
    }

    fn kernel(self) -> Kernel {
        match Isa::detect() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => avx512::kernel(self),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx2Vnni => avx2::kernel(self),
            _ => portable::kernel(self),
        }
    }
}

/// Does some arithmetic and returns the number of operations.
///
/// # Safety
/// The instruction set that it was written for is there.
type Kernel = unsafe fn() -> u64;

/// Runs `work(thread)` over and over on each of `threads` threads for `window`, started together; the
/// sum of what all calls returned, per second.
fn on_all(threads: usize, window: Duration, work: impl Fn(usize) -> f64 + Sync) -> f64 {
    let start = Barrier::new(threads);
    let rate = |thread| {
        // Clocks rise and caches fill before the measurement.
        work(thread);
        start.wait();
        let (begin, mut sum) = (Instant::now(), 0.0);
        loop {
            sum += work(thread);
            let elapsed = begin.elapsed();
            if elapsed >= window {
                return sum / elapsed.as_secs_f64();
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|at| scope.spawn(move || rate(at)))
            .collect();
        let own = rate(0);
        // A thread's panic is a defect of the kernels, and goes on here.
        others.into_iter().fold(own, |sum, other| {
            sum + other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_arithmetic_has_a_positive_rate() {
        for kind in Arithmetic::ALL {
            for threads in [1, 2] {
                let rate = kind.measure(threads);
                assert!(
                    rate.is_finite() && rate > 1e6,
                    "{kind:?} × {threads}: {rate}"
                );
            }
        }
    }

    #[test]
    fn all_threads_are_counted() {
        // Each thread does one unit per call of at least a millisecond.
        let rate = on_all(3, Duration::from_millis(5), |thread| {
            std::thread::sleep(Duration::from_millis(1));
            if thread == 2 { 1.0 } else { 0.0 }
        });
        assert!(rate > 0.0 && rate <= 1000.0, "{rate}");
    }
}
