//! Bins of the latency histograms: four to an octave, from 16 microseconds to 67 seconds, so that a figure
//! read from them is off by an eighth at most. It must not know what is measured.

use std::time::Duration;

use super::micros;

/// Bins of a histogram.
pub(super) const BINS: usize = 90;
/// Octave of the first end: 2^4 microseconds.
const FIRST_OCTAVE: u32 = 4;

/// One histogram.
pub(super) type Histogram = [u32; BINS];

/// Where a duration falls.
pub(super) fn bin(duration: Duration) -> usize {
    let us = micros(duration);
    if us < 1 << FIRST_OCTAVE {
        return 0;
    }
    let octave = us.ilog2();
    let quarter = (us >> (octave - 2)) & 3;
    let bin = (octave - FIRST_OCTAVE) as usize * 4 + quarter as usize + 1;
    bin.min(BINS - 1)
}

/// Upper ends in microseconds, exclusive; the last bin has none.
pub(super) fn ends() -> impl Iterator<Item = u64> {
    (0..BINS - 1).map(|bin| match bin.checked_sub(1) {
        None => 1 << FIRST_OCTAVE,
        Some(bin) => (5 + (bin as u64 & 3)) << (FIRST_OCTAVE as usize + bin / 4 - 2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_begin_where_those_before_them_end() {
        let ends: Vec<u64> = ends().collect();
        assert_eq!(ends.len(), BINS - 1);
        assert_eq!(ends[..6], [16, 20, 24, 28, 32, 40]);
        assert_eq!(ends[BINS - 2], 1 << 26);
        for (at, &end) in ends.iter().enumerate() {
            assert_eq!(bin(Duration::from_micros(end - 1)), at);
            assert_eq!(bin(Duration::from_micros(end)), at + 1);
        }
        assert_eq!(bin(Duration::ZERO), 0);
        assert_eq!(bin(Duration::MAX), BINS - 1);
    }
}
