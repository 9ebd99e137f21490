//! Every operation on every instruction set of this machine, bit for bit.

use super::{BF16_FLOOR, LANES, Lanes, bf16_bits, lanes_kernel};
use crate::Isa;
use baton_model_file::fixtures::Random;

/// Results of one run over three vectors of inputs.
const RESULTS: usize = 21;

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
        // bf16 values whose products are not subnormal, as the contract of `dot_pairs` demands.
        let tame = |v: V| v.without_below(1e-15).min(V::splat(1e15));
        let pairs = V::round_to_pairs(tame(x), tame(y));
        let mut rounded = [0_u16; 2 * LANES];
        V::store_pairs(pairs, rounded.as_mut_ptr());
        let one = V::splat_pair(rounded.as_ptr().add(4));
        let normal = |v: V| v.without_below(BF16_FLOOR);
        V::store_pairs(
            V::round_to_pairs(normal(x), normal(z)),
            rounded.as_mut_ptr(),
        );
        let widen = |from: usize| -> [f32; LANES] {
            std::array::from_fn(|lane| f32::from_bits(u32::from(rounded[from + lane]) << 16))
        };
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
            x.swap_pairs(),
            V::splat(0.5).dot_pairs(pairs, one),
            V::splat(0.5).dot_pairs(V::without_seconds(pairs), one),
            x.min(V::splat(0.0)).exp2(),
            V::splat(if x.any_greater(y) { 1.0 } else { 0.0 }),
            x.without_below(2.0),
            V::load(widen(0).as_ptr()),
            V::load(widen(LANES).as_ptr()),
            y.zero_where_less(x, z),
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

lanes_kernel! {
    unsafe fn powers(x: &[f32; LANES], exp: &mut [f32; LANES], exp2: &mut [f32; LANES])
        = powers_body
}

#[inline(always)]
unsafe fn powers_body<V: Lanes>(x: &[f32; LANES], exp: &mut [f32; LANES], exp2: &mut [f32; LANES]) {
    // SAFETY: all arrays hold one vector.
    unsafe {
        let x = V::load(x.as_ptr());
        x.exp().store(exp.as_mut_ptr());
        x.exp2().store(exp2.as_mut_ptr());
    }
}

#[test]
fn powers_are_within_two_units_in_the_last_place() {
    let close = |got: f32, wanted: f64| {
        (f64::from(got) - wanted).abs() <= 2.0 * f64::from(f32::EPSILON) * wanted
    };
    let all: Vec<f32> = (-49 * 256..=127 * 256)
        .map(|step| step as f32 / 256.0)
        .collect();
    for x in all.as_chunks::<LANES>().0 {
        for &isa in Isa::available() {
            let (mut exp, mut exp2) = ([0.0; LANES], [0.0; LANES]);
            // SAFETY: arrays of one vector; the instruction set is available.
            unsafe { powers(isa, x, &mut exp, &mut exp2) };
            for lane in 0..LANES {
                let x = f64::from(x[lane]);
                assert!(
                    x > 88.3 || close(exp[lane], x.exp()),
                    "{isa:?} e^{x}: {}",
                    exp[lane]
                );
                assert!(close(exp2[lane], x.exp2()), "{isa:?} 2^{x}: {}", exp2[lane]);
            }
        }
    }
}

#[test]
fn powers_of_what_is_no_number_or_far_below_zero() {
    let ends = [f32::NAN, -f32::NAN, f32::NEG_INFINITY, -1e30, f32::MIN];
    let x: [f32; LANES] = std::array::from_fn(|lane| ends[lane % ends.len()]);
    for &isa in Isa::available() {
        let (mut exp, mut exp2) = ([0.0; LANES], [0.0; LANES]);
        // SAFETY: arrays of one vector; the instruction set is available.
        unsafe { powers(isa, &x, &mut exp, &mut exp2) };
        for (lane, x) in x.iter().enumerate() {
            for power in [exp[lane], exp2[lane]] {
                assert!(
                    if x.is_nan() {
                        power.is_nan()
                    } else {
                        power == 0.0
                    },
                    "{isa:?} {x}: {power}"
                );
            }
        }
    }
}

lanes_kernel! {
    unsafe fn narrow(values: &[f32; LANES], words: &mut [u16; LANES], bytes: &mut [u8; LANES])
        = narrow_body
}

#[inline(always)]
unsafe fn narrow_body<V: Lanes>(
    values: &[f32; LANES],
    words: &mut [u16; LANES],
    bytes: &mut [u8; LANES],
) {
    // SAFETY: all arrays hold one vector.
    unsafe {
        let x = V::load(values.as_ptr());
        x.store_bf16(words.as_mut_ptr());
        x.store_low_bytes(bytes.as_mut_ptr());
    }
}

#[test]
fn narrowed_values_are_the_same_on_all_instruction_sets() {
    let special = [
        0.0,
        -0.0,
        BF16_FLOOR,
        f32::MIN_POSITIVE,
        f32::MAX,
        1.0,
        12_582_800.0,
    ];
    let special = special.map(f32::to_bits).into_iter().flat_map(|bits| {
        [
            bits.wrapping_sub(1),
            bits,
            bits + 1,
            bits | 0x7fff,
            bits | 0x8000,
            bits | 0x1_8000,
        ]
    });
    let nans = [
        0x7f80_0000,
        0xff80_0000,
        0x7f80_0001,
        0xff80_ffff,
        0x7fc0_1234,
    ];
    let mut state = 1_u32;
    let any = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    });
    let bits: Vec<u32> = special.chain(nans).chain(any).take(LANES * 4_000).collect();
    for bits in bits.as_chunks::<LANES>().0 {
        let values = bits.map(f32::from_bits);
        for &isa in Isa::available() {
            let (mut words, mut bytes) = ([0; LANES], [0; LANES]);
            // SAFETY: arrays of one vector; the instruction set is available.
            unsafe { narrow(isa, &values, &mut words, &mut bytes) };
            assert_eq!(words, values.map(bf16_bits), "{isa:?} {bits:08x?}");
            assert_eq!(bytes, bits.map(|bits| bits as u8), "{isa:?} {bits:08x?}");
        }
    }
}

lanes_kernel! {
    unsafe fn products(
        codes: &[u8; 4 * LANES], digits: &[[i8; 4]; 2], sums: &mut [[f32; LANES]; 2],
    ) = products_body
}

#[inline(always)]
unsafe fn products_body<V: Lanes>(
    codes: &[u8; 4 * LANES],
    digits: &[[i8; 4]; 2],
    sums: &mut [[f32; LANES]; 2],
) {
    // SAFETY: arrays of the sizes that the operations name.
    unsafe {
        let quads = V::load_quads(codes.as_ptr());
        let [signed, unsigned] = digits;
        let digits: i32 = signed.iter().map(|digit| i32::from(*digit)).sum();
        let from = V::splat_sum(1_000 - V::BIAS * digits);
        let sum = V::dot_offset(from, quads, V::splat_quad(signed.as_ptr()));
        V::widen(sum).store(sums[0].as_mut_ptr());
        let sum = V::dot(V::splat_sum(-7), quads, V::splat_quad(unsigned.as_ptr()));
        V::widen(sum).store(sums[1].as_mut_ptr());
    }
}

#[test]
fn sums_of_codes_times_digits_are_exact() {
    let mut random = Random::new(0xc0de);
    for trial in 0..2_000 {
        let extreme = trial % 3 == 0;
        let mut pick = |all: &[i32], from: i32, to: i32| {
            if extreme {
                all[random.below(all.len())]
            } else {
                from + random.below((to - from + 1) as usize) as i32
            }
        };
        let codes: [u8; 4 * LANES] =
            std::array::from_fn(|_| pick(&[1, 127, 128, 255], 1, 255) as u8);
        let digits: [[i8; 4]; 2] = [
            std::array::from_fn(|_| pick(&[-127, -1, 0, 127], -127, 127) as i8),
            std::array::from_fn(|_| pick(&[0, 1, 127], 0, 127) as i8),
        ];
        let plain = |lane: usize, code: fn(u8) -> i32, digits: &[i8; 4]| -> i32 {
            let codes = &codes[4 * lane..][..4];
            codes
                .iter()
                .zip(digits)
                .map(|(c, d)| code(*c) * i32::from(*d))
                .sum()
        };
        let expected = [
            std::array::from_fn(|lane| {
                (1_000 + plain(lane, |code| i32::from(code) - 128, &digits[0])) as f32
            }),
            std::array::from_fn(|lane| {
                (-7 + plain(lane, |code| i32::from(code as i8), &digits[1])) as f32
            }),
        ];
        for &isa in Isa::available() {
            let mut sums = [[0.0; LANES]; 2];
            // SAFETY: arrays of one vector; the instruction set is available.
            unsafe { products(isa, &codes, &digits, &mut sums) };
            assert_eq!(sums, expected, "{isa:?} {codes:?} {digits:?}");
        }
    }
}

lanes_kernel! {
    unsafe fn digits(numbers: &[f32; LANES], high: &mut [i8; LANES], low: &mut [i8; LANES])
        = digits_body
}

#[inline(always)]
unsafe fn digits_body<V: Lanes>(
    numbers: &[f32; LANES],
    high: &mut [i8; LANES],
    low: &mut [i8; LANES],
) {
    // SAFETY: arrays of one vector.
    unsafe {
        let shifted = V::load(numbers.as_ptr()).add(V::splat(12_582_912.0));
        shifted.store_digits(high.as_mut_ptr(), low.as_mut_ptr());
    }
}

#[test]
fn digits_make_up_their_number() {
    let all: Vec<f32> = (-127 * 128..=127 * 128).map(|n| n as f32).collect();
    for numbers in all.as_chunks::<LANES>().0 {
        for &isa in Isa::available() {
            let (mut high, mut low) = ([0; LANES], [0; LANES]);
            // SAFETY: arrays of one vector; the instruction set is available.
            unsafe { digits(isa, numbers, &mut high, &mut low) };
            for (number, (high, low)) in numbers.iter().zip(high.iter().zip(&low)) {
                assert!(*high >= -127 && *low >= 0, "{isa:?} {number}: {high} {low}");
                let sum = i32::from(*high) * 128 + i32::from(*low);
                assert_eq!(sum, *number as i32, "{isa:?}");
            }
        }
    }
}

lanes_kernel! {
    unsafe fn quads(numbers: &[f32; 4 * LANES], high: &mut [i8; 4 * LANES], low: &mut [i8; 4 * LANES])
        = quads_body
}

#[inline(always)]
unsafe fn quads_body<V: Lanes>(
    numbers: &[f32; 4 * LANES],
    high: &mut [i8; 4 * LANES],
    low: &mut [i8; 4 * LANES],
) {
    let mut shifted = [V::splat(12_582_912.0); 4];
    // SAFETY: arrays of four vectors.
    unsafe {
        for (v, shifted) in shifted.iter_mut().enumerate() {
            *shifted = shifted.add(V::load(numbers[v * LANES..].as_ptr()));
        }
        V::store_quads(shifted, high.as_mut_ptr(), low.as_mut_ptr());
    }
}

#[test]
fn quads_of_digits_are_in_order() {
    let mut random = Random::new(0xd161);
    for _ in 0..200 {
        let numbers: [f32; 4 * LANES] = std::array::from_fn(|_| {
            [0, 127, 128, 127 * 128, random.below(127 * 128)][random.below(5)] as f32
        });
        for &isa in Isa::available() {
            let (mut high, mut low) = ([0; 4 * LANES], [0; 4 * LANES]);
            // SAFETY: arrays of four vectors; the instruction set is available.
            unsafe { quads(isa, &numbers, &mut high, &mut low) };
            for (at, number) in numbers.iter().enumerate() {
                let (vector, lane) = (at / LANES, at % LANES);
                let place = lane / 4 * 16 + vector * 4 + lane % 4;
                let sum = i32::from(high[place]) * 128 + i32::from(low[place]);
                assert_eq!(sum, *number as i32, "{isa:?}, {at}");
                assert!(low[place] >= 0, "{isa:?}");
            }
        }
    }
}

#[test]
fn bf16_is_the_nearest_and_keeps_what_is_no_number() {
    for (value, expected) in [
        (1.0, 0x3f80),
        (1.0 + 1.0 / 256.0, 0x3f80),
        (1.0 + 3.0 / 256.0, 0x3f82),
        (f32::MAX, 0x7f80),
        (f32::NEG_INFINITY, 0xff80),
        (f32::from_bits(0x7f80_0001), 0x7fc0),
        (BF16_FLOOR, 0x2680),
        (-BF16_FLOOR * 0.999, 0),
        (f32::MIN_POSITIVE / 2.0, 0),
    ] {
        assert_eq!(bf16_bits(value), expected, "{value:e}");
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
