//! The machine's ceilings, measured between the rounds.

use baton_engine::cpu::ceilings::{Arithmetic, ReadCeiling};

use crate::bench::statistics::Median;
use crate::exit::Failure;

use super::subject::failure;

/// Sizes that are read, in MiB: from the last cache, as much as a small model's weights, from memory.
pub(super) const READ_MIB: [usize; 3] = [16, 96, 512];

/// Measures ceilings again and again.
pub(super) struct Machine {
    threads: usize,
    reading: ReadCeiling,
    arithmetic: [Vec<f64>; 3],
    read: [Vec<f64>; 3],
}

/// Medians: operations and bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ceilings {
    pub(super) f32: f64,
    pub(super) bf16: f64,
    pub(super) int8: f64,
    /// Of the sizes of [`READ_MIB`].
    pub(super) read: [f64; 3],
}

impl Ceilings {
    /// The one that decode is compared with: 96 MiB.
    pub(super) fn weights_read(&self) -> f64 {
        self.read[1]
    }
}

impl Machine {
    /// Takes the memory to be read.
    pub(super) fn new(threads: usize) -> Result<Self, Failure> {
        let largest = READ_MIB.into_iter().max().unwrap_or(0) << 20;
        Ok(Self {
            threads,
            reading: ReadCeiling::new(largest).map_err(|error| failure(&error))?,
            arithmetic: [const { Vec::new() }; 3],
            read: [const { Vec::new() }; 3],
        })
    }

    /// Measures each once.
    pub(super) fn measure(&mut self) {
        for (kind, rates) in Arithmetic::ALL.into_iter().zip(&mut self.arithmetic) {
            rates.push(kind.measure(self.threads));
        }
        for (mib, rates) in READ_MIB.into_iter().zip(&mut self.read) {
            rates.push(self.reading.measure(mib << 20, self.threads));
        }
    }

    /// Medians of all measurements.
    pub(super) fn ceilings(&self) -> Ceilings {
        let median = |rates: &Vec<f64>| Median::of(rates.iter().copied()).value;
        let [f32, bf16, int8] = self.arithmetic.each_ref().map(median);
        Ceilings {
            f32,
            bf16,
            int8,
            read: self.read.each_ref().map(median),
        }
    }
}
