//! Every operation on every instruction set of this machine, bit for bit.

use super::{LANES, Lanes, lanes_kernel};
use crate::Isa;

/// Results of one run over three vectors of inputs.
const RESULTS: usize = 14;

lanes_kernel! {
    unsafe fn everything(a: &[f32; LANES], b: &[f32; LANES], c: &[f32; LANES], out: &mut [[f32; LANES]; RESULTS])
        = everything_body
}

#[inline(always)]
unsafe fn everything_body<V: Lanes>(
    a: &[f32; LANES],
    b: &[f32; LANES],
    c: &[f32; LANES],
    out: &mut [[f32; LANES]; RESULTS],
) {
    // SAFETY: all arrays hold one vector (two of 16-bit values).
    unsafe {
        let (x, y, z) = (
            V::load(a.as_ptr()),
            V::load(b.as_ptr()),
            V::load(c.as_ptr()),
        );
        let (first, second) = V::load_bf16_pairs(a.as_ptr().cast());
        let results = [
            x.add(y),
            x.sub(y),
            x.mul(y),
            x.div(y),
            x.fma(y, z),
            x.max(y),
            x.min(y),
            x.where_less(y, z, V::splat(1.5)),
            x.first(5, y),
            x.first(40, y),
            x.exp(),
            V::splat(x.sum()),
            first,
            second,
        ];
        for (result, out) in results.iter().zip(out) {
            result.store(out.as_mut_ptr());
        }
    }
}

/// Numbers of all magnitudes, signs and kinds.
fn numbers(seed: u32) -> [f32; LANES] {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    std::array::from_fn(|lane| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match (seed as usize + lane) % 23 {
            0 => f32::INFINITY,
            1 => f32::NEG_INFINITY,
            2 => -0.0,
            3 => f32::MIN_POSITIVE / 3.0,
            4 => -87.336_54,
            5 => 88.9,
            _ => (state >> 8) as f32 / (1 << 20) as f32 - 8.0,
        }
    })
}

#[test]
fn all_instruction_sets_give_the_same_bits() {
    for seed in 0..2_000 {
        let (a, b, c) = (numbers(seed), numbers(seed + 7), numbers(seed * 3 + 1));
        let run = |isa| {
            let mut out = [[0.0; LANES]; RESULTS];
            // SAFETY: arrays of the right sizes; the instruction set is available.
            unsafe {
                everything(isa, &a, &b, &c, &mut out);
            }
            // Not-a-number is not-a-number, whatever its bits.
            out.map(|row| row.map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }))
        };
        let expected = run(Isa::Portable);
        for &isa in Isa::available() {
            assert_eq!(run(isa), expected, "{isa:?}, seed {seed}");
        }
    }
}

#[test]
fn exp_is_close_to_the_real_one() {
    let mut largest: f64 = 0.0;
    for step in 0..176_000_u32 {
        let x = (step as f32) * 0.001 - 88.0;
        let mut out = [[0.0; LANES]; RESULTS];
        // SAFETY: arrays of the right sizes; the instruction set is available.
        unsafe {
            everything(
                Isa::detect(),
                &[x; LANES],
                &[0.0; LANES],
                &[0.0; LANES],
                &mut out,
            );
        }
        let (ours, theirs) = (f64::from(out[10][0]), f64::from(x).exp());
        if x < -87.336 {
            assert!(ours <= f64::from(f32::MIN_POSITIVE), "exp {x}");
        } else {
            largest = largest.max((ours / theirs - 1.0).abs());
        }
    }
    assert!(
        largest < 2.0 * f64::from(f32::EPSILON),
        "relative error {largest}"
    );
    let mut out = [[0.0; LANES]; RESULTS];
    // SAFETY: as above.
    unsafe {
        everything(
            Isa::detect(),
            &[f32::NEG_INFINITY; LANES],
            &[0.0; LANES],
            &[0.0; LANES],
            &mut out,
        );
    }
    assert!(out[10].iter().all(|x| x.to_bits() == 0));
}
