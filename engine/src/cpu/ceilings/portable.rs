//! Arithmetic in plain Rust, for machines without vector kernels of their own.

use std::hint::black_box;

use super::{
    Arithmetic, Kernel, TURNS,
    reading::{STEP, STREAMS},
};

/// Values side by side: several vectors of whatever width the compiler uses.
const LANES: usize = 32;

pub(super) fn kernel(kind: Arithmetic) -> Kernel {
    match kind {
        Arithmetic::F32 => f32_lanes,
        Arithmetic::Bf16 => bf16_lanes,
        Arithmetic::Int8 => int8_lanes,
    }
}

fn f32_lanes() -> u64 {
    let (x, y) = black_box((0.5_f32, 0.25_f32));
    let mut sums = [0.0_f32; LANES];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = *sum * x + y;
        }
    }
    black_box(sums);
    (TURNS * LANES * 2) as u64
}

fn bf16_lanes() -> u64 {
    let pairs = [0x3f00_3e80_u32; LANES];
    let (odd, even) = black_box((0.5_f32, 0.25_f32));
    let mut sums = [0.0_f32; LANES];
    for _ in 0..TURNS {
        for (sum, pair) in sums.iter_mut().zip(black_box(&pairs)) {
            *sum += f32::from_bits(pair & 0xffff_0000) * odd + f32::from_bits(pair << 16) * even;
        }
    }
    black_box(sums);
    (TURNS * LANES * 4) as u64
}

fn int8_lanes() -> u64 {
    let (codes, x) = ([7_u8; 4 * LANES], [-3_i8; 4 * LANES]);
    let mut sums = [0_i32; LANES];
    for _ in 0..TURNS {
        let operands = black_box(&codes)
            .chunks_exact(4)
            .zip(black_box(&x).chunks_exact(4));
        for (sum, (codes, x)) in sums.iter_mut().zip(operands) {
            let products = codes
                .iter()
                .zip(x)
                .map(|(code, x)| i32::from(*code) * i32::from(*x));
            *sum = sum.wrapping_add(products.sum());
        }
    }
    black_box(sums);
    (TURNS * LANES * 8) as u64
}

/// Reads [`STREAMS`] equal parts of `data` side by side; the bits of all words read, so that no read is
/// left out.
pub(super) fn read(data: &[u8]) -> u64 {
    const WORDS: usize = STEP / 8;
    let part = data.len() / STREAMS;
    let mut sums = [0_u64; WORDS];
    for at in (0..=part - STEP).step_by(STEP) {
        for stream in 0..STREAMS {
            let step = &data[stream * part + at..][..STEP];
            for (sum, word) in sums.iter_mut().zip(step.chunks_exact(8)) {
                *sum |= u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            }
        }
    }
    sums.into_iter().fold(0, |all, sum| all | sum)
}
