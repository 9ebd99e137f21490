//! The sampler's parts alone: mathematics, random numbers, scans. Not whole draws.

use super::row;
use crate::math::{exp_nonpositive, ln};
use crate::philox::{philox4x32, uniform};
use crate::scan::{Peak, Scan};
use crate::select::{BLOCK, block_sums, draw, sum};

/// Known answers published with Random123 (`kat_vectors`, philox 4x32 10).
#[test]
fn philox_matches_its_published_vectors() {
    assert_eq!(
        philox4x32([0, 0], [0; 4]),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    assert_eq!(
        philox4x32([u32::MAX; 2], [u32::MAX; 4]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
    assert_eq!(
        philox4x32(
            [0xa409_3822, 0x299f_31d0],
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]
        ),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
}

#[test]
fn uniform_numbers_fill_the_unit_interval() {
    let mut bins = [0u32; 16];
    for position in 0..16_000 {
        let u = uniform(99, 1, position);
        assert!((0.0..1.0).contains(&u));
        bins[(u * 16.0) as usize] += 1;
    }
    assert!(
        bins.iter().all(|&count| (850..1150).contains(&count)),
        "{bins:?}"
    );
    assert_ne!(uniform(1, 0, 0).to_bits(), uniform(1 << 32, 0, 0).to_bits());
}

#[test]
fn exp_and_ln_are_accurate() {
    for step in 0..200_000u32 {
        let x = -(step as f32) * 5e-4;
        let exact = f64::from(x).exp();
        let got = f64::from(exp_nonpositive(x));
        if x < -87.0 {
            assert!(got == 0.0, "exp({x}) = {got}");
        } else {
            assert!(
                (got / exact - 1.0).abs() < 3e-7,
                "exp({x}) = {got}, not {exact}"
            );
        }
        let y = 1.0 + step as f32 * 1.7;
        let exact = f64::from(y).ln();
        assert!(
            (f64::from(ln(y)) - exact).abs() <= 2e-7 * exact.max(1.0),
            "ln({y})"
        );
    }
    assert_eq!(exp_nonpositive(0.0).to_bits(), 1.0f32.to_bits());
    assert_eq!(ln(1.0).to_bits(), 0.0f32.to_bits());
    assert_eq!(exp_nonpositive(f32::NEG_INFINITY).to_bits(), 0);
}

#[test]
fn draws_follow_the_weights() {
    let draw = |weights: &[f32], number| {
        let block = |at| weights.chunks(BLOCK).nth(at).unwrap_or(&[]);
        draw(&block_sums(weights), number, block)
    };
    let mut weights = vec![0.0; 700];
    (weights[3], weights[300], weights[699]) = (1.0, 2.0, 5.0);
    let mut counts = [0u32; 700];
    for position in 0..8_000 {
        counts[draw(&weights, uniform(5, 0, position))] += 1;
    }
    assert_eq!(counts[3] + counts[300] + counts[699], 8_000);
    for (index, expected) in [(3, 1_000), (300, 2_000), (699, 5_000)] {
        let count: i64 = counts[index].into();
        assert!((count - expected).abs() < 200, "{index}: {count}");
    }
    assert_eq!(draw(&weights, 0.999_999_94), 699);
    assert_eq!(draw(&[0.0, 1.0, 0.0], 0.0), 1);
}

#[test]
fn peak_finds_the_first_maximum_and_bad_numbers() {
    for width in [1, 15, 16, 17, 1_000] {
        let mut values = row(3, width);
        values[width / 2] = 50.0;
        values[width - 1] = 50.0;
        let index = width / 2;
        assert_eq!(Scan::of(&values).peak(), Peak::At { index, value: 50.0 });
        values[width - 1] = f32::NAN;
        assert_eq!(Scan::of(&values).peak(), Peak::NotFinite);
        values[width - 1] = f32::INFINITY;
        assert_eq!(Scan::of(&values).peak(), Peak::NotFinite);
    }
    assert_eq!(Scan::of(&[]).peak(), Peak::Nothing);
    assert_eq!(Scan::of(&[f32::NEG_INFINITY]).peak(), Peak::Nothing);
    assert!(Scan::of(&[]).largest(3).is_empty() && sum(&block_sums(&[])).to_bits() == 0);
}
