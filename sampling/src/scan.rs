//! One pass over a row of logits that remembers the largest of every 64 values; everything that asks for
//! the large ones then looks into few places only.
//!
//! A group is 1024 values, a lane of it those whose index is the same modulo 16: so the pass needs no
//! reduction across a vector. Ties go to the lowest index everywhere. Must not know of parameters or
//! tokens.
#![allow(clippy::inline_always)] // Inlined into one function per instruction set, or it is not vector code.

const LANES: usize = 16;
const GROUP: usize = 1024;

/// Largest value and its lowest index, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Peak {
    /// The largest value is finite.
    At { index: usize, value: f32 },
    /// Empty, or all are minus infinity.
    Nothing,
    /// A NaN or plus infinity is among them.
    NotFinite,
}

/// A row and the largest values of its groups' lanes.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    row: &'a [f32],
    /// Of each group; minus infinity where a lane holds no other number.
    maxima: Vec<[f32; LANES]>,
    has_nan: bool,
}

impl<'a> Scan<'a> {
    /// Reads the row once.
    #[inline(always)]
    pub(crate) fn of(row: &'a [f32]) -> Self {
        let mut maxima = Vec::with_capacity(row.len().div_ceil(GROUP));
        let mut has_nan = false;
        for group in row.chunks(GROUP) {
            let mut best = [f32::NEG_INFINITY; LANES];
            let mut nan = [false; LANES];
            let (chunks, rest) = group.as_chunks::<LANES>();
            for chunk in chunks {
                for lane in 0..LANES {
                    let v = chunk[lane];
                    best[lane] = if v > best[lane] { v } else { best[lane] };
                    nan[lane] |= v.is_nan();
                }
            }
            for (lane, &v) in rest.iter().enumerate() {
                best[lane] = if v > best[lane] { v } else { best[lane] };
                nan[lane] |= v.is_nan();
            }
            maxima.push(best);
            has_nan |= nan.contains(&true);
        }
        Self {
            row,
            maxima,
            has_nan,
        }
    }

    /// Largest value and its lowest index.
    #[inline(always)]
    pub(crate) fn peak(&self) -> Peak {
        let (mut group, mut value) = (0, f32::NEG_INFINITY);
        for (number, lanes) in self.maxima.iter().enumerate() {
            let largest = largest_of(lanes);
            if largest > value {
                (group, value) = (number, largest);
            }
        }
        if self.has_nan || value == f32::INFINITY {
            return Peak::NotFinite;
        }
        let start = group * GROUP;
        // Not smaller than the largest is equal to it.
        match self.row[start..].iter().position(|&v| v >= value) {
            Some(offset) if value > f32::NEG_INFINITY => Peak::At {
                index: start + offset,
                value,
            },
            _ => Peak::Nothing,
        }
    }

    /// Indices of the `k` largest values, largest first, ties by lowest index. No NaN may be among them.
    ///
    /// Each of the `k` lanes with the largest maxima holds a value that is at least the `k`-th of these
    /// maxima: what is below that cannot be among the `k` largest. Hardly more than `k` pass.
    #[inline(always)]
    pub(crate) fn largest(&self, k: usize) -> Vec<u32> {
        let k = k.min(self.row.len());
        if k == 0 {
            return Vec::new();
        }
        let bar = self.bar(k);
        let mut ranks: Vec<u64> = Vec::with_capacity(2 * k);
        for (group, lanes) in self.row.chunks(GROUP).zip(&self.maxima).enumerate() {
            let (values, maxima) = lanes;
            for (lane, _) in maxima.iter().enumerate().filter(|&(_, &v)| v >= bar) {
                for at in (lane..values.len()).step_by(LANES) {
                    if values[at] >= bar {
                        ranks.push(rank(values[at], (group * GROUP + at) as u32));
                    }
                }
            }
        }
        if k < ranks.len() {
            ranks.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
            ranks.truncate(k);
        }
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        ranks.into_iter().map(|r| index_of(r) as u32).collect()
    }

    /// Indices, ascending, of the values that `f` gives a weight of at least `least`, and these weights.
    /// `f` must give less to all values of a group for whose largest `may` does not hold.
    #[inline(always)]
    pub(crate) fn weighed(
        &self,
        may: impl Fn(f32) -> bool,
        f: impl Fn(f32) -> f32,
        least: f32,
    ) -> (Vec<u32>, Vec<f32>) {
        let (mut ids, mut kept) = (Vec::new(), Vec::new());
        let mut weights = [0.0; GROUP];
        let mut places = [0u16; GROUP];
        for (group, lanes) in self.row.chunks(GROUP).zip(&self.maxima).enumerate() {
            let (values, maxima) = lanes;
            if !may(largest_of(maxima)) {
                continue;
            }
            for (weight, &v) in weights.iter_mut().zip(values) {
                *weight = f(v);
            }
            // Every entry is written; the place moves on where it is kept. Branches would be guesses.
            let mut count = 0;
            for (place, &weight) in (0..).zip(&weights[..values.len()]) {
                places[count] = place;
                count += usize::from(weight >= least);
            }
            let places = &places[..count];
            ids.extend(
                places
                    .iter()
                    .map(|&at| (group * GROUP) as u32 + u32::from(at)),
            );
            kept.extend(places.iter().map(|&at| weights[usize::from(at)]));
        }
        (ids, kept)
    }

    /// The `k`-th largest of the lanes' maxima, minus infinity if there are fewer.
    fn bar(&self, k: usize) -> f32 {
        let mut maxima = self.maxima.concat();
        if k > maxima.len() {
            return f32::NEG_INFINITY;
        }
        *maxima
            .select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a))
            .1
    }
}

/// Value and index in one integer whose order is "larger value first, then lower index".
pub(crate) fn rank(value: f32, index: u32) -> u64 {
    // Adding zero turns -0 into +0, which must tie.
    let bits = (value + 0.0).to_bits();
    let ordered = if bits >> 31 == 0 {
        bits | 0x8000_0000
    } else {
        !bits
    };
    u64::from(ordered) << 32 | u64::from(!index)
}

/// The index in a [`rank`].
pub(crate) fn index_of(rank: u64) -> usize {
    !(rank as u32) as usize
}

#[inline(always)]
fn largest_of(lanes: &[f32; LANES]) -> f32 {
    let larger = |a: f32, &v: &f32| if v > a { v } else { a };
    lanes.iter().fold(f32::NEG_INFINITY, larger)
}
