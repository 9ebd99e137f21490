//! Picking from a row of non-negative weights: the smallest set with a given share, one at random.
//!
//! Ties go to the lowest index everywhere. Sums run in one fixed order (lanes, then blocks), whatever
//! the machine. Must not know of parameters or tokens.
#![allow(clippy::inline_always)] // Inlined into one function per instruction set, or it is not vector code.

use crate::scan::{index_of, rank};

/// Values summed lane by lane before the blocks' sums are added up.
pub(crate) const BLOCK: usize = 256;
const LANES: usize = 16;

/// Indices, ascending, of the smallest set of weights that reaches `target`, taken from the largest down,
/// ties by lowest index; all of them if they do not reach it. Never empty for a non-empty row.
///
/// Weights lie in `[0, 1]`. They are counted into buckets of equal exponent and leading mantissa
/// bits; only the bucket in which the target is reached is sorted.
pub(crate) fn nucleus(weights: &[f32], target: f32) -> Vec<u32> {
    const SHIFT: u32 = 20;
    const BUCKETS: usize = (1.0f32.to_bits() >> SHIFT) as usize + 1;
    let bucket_of = |weight: f32| ((weight.to_bits() >> SHIFT) as usize).min(BUCKETS - 1);
    let mut masses = [0.0f32; BUCKETS];
    for &weight in weights {
        masses[bucket_of(weight)] += weight;
    }
    let mut running = 0.0;
    let mut edge = 0;
    for (bucket, &mass) in masses.iter().enumerate().rev() {
        if running + mass >= target {
            edge = bucket;
            break;
        }
        running += mass;
    }
    let mut ranked: Vec<u64> = (0u32..)
        .zip(weights)
        .filter(|&(_, &weight)| bucket_of(weight) == edge)
        .map(|(index, &weight)| rank(weight, index))
        .collect();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    let mut last = 0;
    for &next in &ranked {
        last = next;
        running += weights[index_of(next)];
        if running >= target {
            break;
        }
    }
    (0u32..)
        .zip(weights)
        .filter(|&(index, &weight)| rank(weight, index) >= last)
        .map(|(index, _)| index)
        .collect()
}

/// Sums of the blocks of 256 of `weights`.
pub(crate) fn block_sums(weights: &[f32]) -> Vec<f32> {
    weights.chunks(BLOCK).map(block_sum).collect()
}

/// Sum of blocks' sums, one after the other.
pub(crate) fn sum(sums: &[f32]) -> f32 {
    sums.iter().fold(0.0, |a, b| a + b)
}

/// Sum in the fixed order: lane by lane, then over the 16 lanes.
#[inline(always)]
pub(crate) fn block_sum(block: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, &v) in rest.iter().enumerate() {
        lanes[lane] += v;
    }
    lanes.into_iter().fold(0.0, |a, b| a + b)
}

/// The index at which the running sum of weights first exceeds `uniform * sum`; a weight of zero is
/// never drawn as long as any is positive. `uniform` is in `[0, 1)`; `sums` are the [`block_sums`], and
/// `block` gives a block's weights by its number.
#[inline(always)]
pub(crate) fn draw<B: AsRef<[f32]>>(
    sums: &[f32],
    uniform: f32,
    block: impl FnOnce(usize) -> B,
) -> usize {
    let target = uniform * sum(sums);
    let mut total = 0.0;
    let (mut at, mut base) = (0, 0.0);
    for (number, &mass) in sums.iter().enumerate() {
        if mass > 0.0 {
            (at, base) = (number, total);
            if total + mass > target {
                break;
            }
        }
        total += mass;
    }
    // Rounding may leave the target at the very end; then the last positive weight takes it.
    let mut running = base;
    let mut chosen = 0;
    for (offset, &weight) in block(at).as_ref().iter().enumerate() {
        if weight > 0.0 {
            chosen = offset;
            running += weight;
            if running > target {
                break;
            }
        }
    }
    at * BLOCK + chosen
}
