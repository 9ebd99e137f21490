//! Picking from a row of non-negative weights or logits: the largest, the `k` largest, one at random.
//!
//! Nothing here sorts the whole row. Ties go to the lowest index everywhere. Sums run in one fixed
//! order (lanes, then blocks), whatever the machine. Must not know of parameters or tokens.

/// Values summed lane by lane before the blocks' sums are added up.
const BLOCK: usize = 256;
const LANES: usize = 16;

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

/// Finds the largest value without branches in the hot loop.
pub(crate) fn peak(values: &[f32]) -> Peak {
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut nan = [false; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let v = chunk[lane];
            nan[lane] |= v.is_nan();
            best[lane] = if v > best[lane] { v } else { best[lane] };
        }
    }
    for (lane, &v) in rest.iter().enumerate() {
        nan[lane] |= v.is_nan();
        best[lane] = if v > best[lane] { v } else { best[lane] };
    }
    let value = best.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if nan.contains(&true) || value == f32::INFINITY {
        return Peak::NotFinite;
    }
    if value == f32::NEG_INFINITY {
        return Peak::Nothing;
    }
    // Not smaller than the largest is equal to it.
    match values.iter().position(|&v| v >= value) {
        Some(index) => Peak::At { index, value },
        None => Peak::Nothing,
    }
}

/// Indices of the `k` largest values, largest first, ties by lowest index. No NaN may be among them.
///
/// One pass with a rising bar: a value enters the buffer only if it beats the worst of the best `k`
/// seen so far, so nearly all of a long row is passed over 16 values at a time.
pub(crate) fn largest(values: &[f32], k: usize) -> Vec<u32> {
    let k = k.min(values.len());
    if k == 0 {
        return Vec::new();
    }
    let room = k.saturating_mul(2).max(k + 64);
    let mut buffer: Vec<u64> = Vec::with_capacity(room.min(values.len()));
    let mut bar: Option<f32> = None;
    for (number, chunk) in values.chunks(LANES).enumerate() {
        if let Some(bar) = bar {
            let top = chunk
                .iter()
                .fold(f32::NEG_INFINITY, |a, &v| if v > a { v } else { a });
            if top <= bar {
                continue;
            }
        }
        for (offset, &v) in chunk.iter().enumerate() {
            // An equal value that comes later loses to the one already held: strictly greater.
            if bar.is_none_or(|bar| v > bar) {
                buffer.push(rank(v, (number * LANES + offset) as u32));
                if buffer.len() >= room {
                    buffer.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
                    buffer.truncate(k);
                    bar = Some(values[index_of(buffer[k - 1])]);
                }
            }
        }
    }
    buffer.sort_unstable_by(|a, b| b.cmp(a));
    buffer.truncate(k);
    buffer.into_iter().map(|r| index_of(r) as u32).collect()
}

/// Indices, ascending, of the smallest set whose share of the sum reaches `share`, taken from the
/// largest weight down, ties by lowest index. Never empty for a non-empty row.
///
/// Weights lie in `[0, 1]`. They are counted into buckets of equal exponent and leading mantissa
/// bits; only the bucket in which the share is reached is sorted.
pub(crate) fn nucleus(weights: &[f32], share: f32) -> Vec<u32> {
    const SHIFT: u32 = 20;
    const BUCKETS: usize = (1.0f32.to_bits() >> SHIFT) as usize + 1;
    let bucket_of = |weight: f32| ((weight.to_bits() >> SHIFT) as usize).min(BUCKETS - 1);
    let mut masses = [0.0f32; BUCKETS];
    for &weight in weights {
        masses[bucket_of(weight)] += weight;
    }
    let target = share * masses.iter().rev().fold(0.0, |a, b| a + b);
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

/// Sum in the fixed order: 16 lanes inside a block of 256, then block after block.
pub(crate) fn sum(weights: &[f32]) -> f32 {
    weights.chunks(BLOCK).map(block_sum).fold(0.0, |a, b| a + b)
}

/// The index at which the running sum of weights first exceeds `uniform * sum`; a weight of zero is
/// never drawn as long as any is positive. `uniform` is in `[0, 1)`.
pub(crate) fn draw(weights: &[f32], uniform: f32) -> usize {
    let target = uniform * sum(weights);
    let mut total = 0.0;
    let (mut start, mut base) = (0, 0.0);
    for (number, block) in weights.chunks(BLOCK).enumerate() {
        let mass = block_sum(block);
        if mass > 0.0 {
            (start, base) = (number * BLOCK, total);
            if total + mass > target {
                break;
            }
        }
        total += mass;
    }
    // Rounding may leave the target at the very end; then the last positive weight takes it.
    let block = &weights[start..weights.len().min(start + BLOCK)];
    let mut running = base;
    let mut chosen = start;
    for (offset, &weight) in block.iter().enumerate() {
        if weight > 0.0 {
            chosen = start + offset;
            running += weight;
            if running > target {
                break;
            }
        }
    }
    chosen
}

fn block_sum(block: &[f32]) -> f32 {
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

/// Value and index in one integer whose order is "larger value first, then lower index".
fn rank(value: f32, index: u32) -> u64 {
    // Adding zero turns -0 into +0, which must tie.
    let bits = (value + 0.0).to_bits();
    let ordered = if bits >> 31 == 0 {
        bits | 0x8000_0000
    } else {
        !bits
    };
    u64::from(ordered) << 32 | u64::from(!index)
}

fn index_of(rank: u64) -> usize {
    !(rank as u32) as usize
}
