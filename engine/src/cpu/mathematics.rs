//! Elementary functions in f64 from additions, multiplications and divisions alone, for constants
//! and rotations that must be the same bits on every machine. Not for inner loops.

use std::f64::consts::{FRAC_2_PI, LN_2, SQRT_2};

/// `e^x` for `|x| < 700`, within a few units in the last place.
pub(crate) fn exp(x: f64) -> f64 {
    // ln 2 in two parts; the first has 21 trailing zero bits, so that n times it is exact.
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let n = (x / LN_2).round();
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let sum = (1..=16)
        .rev()
        .fold(1.0, |sum, k| 1.0 + sum * r / f64::from(k));
    sum * f64::from_bits(((1023 + n as i64) as u64) << 52)
}

/// Natural logarithm of a positive normal number, within a few units in the last place.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh s, |s| < 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let sum = (0..=13)
        .rev()
        .fold(0.0, |sum, k| sum * s * s + 1.0 / f64::from(2 * k + 1));
    2.0 * s * sum + exponent as f64 * LN_2
}

/// Sine and cosine of `0 <= x < 2^20`, within 1e-13.
pub(crate) fn sin_cos(x: f64) -> (f64, f64) {
    // Half of pi in three parts, the first two of 33 bits, so that products with n < 2^20 are exact.
    const HALF_PI: [f64; 3] = [
        1.570_796_326_734_125_6,
        6.077_100_506_303_966e-11,
        2.022_266_248_795_950_6e-21,
    ];
    let n = (x * FRAC_2_PI).round();
    let r = HALF_PI.iter().fold(x, |rest, part| rest - n * part);
    let square = r * r;
    let series = |first: u32| {
        (1..=9).rev().fold(1.0, |sum, k| {
            let k = first + 2 * k;
            1.0 - sum * square / f64::from(k * (k - 1))
        })
    };
    let (sine, cosine) = (r * series(1), series(0));
    match n as i64 % 4 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agree_with_the_standard_library() {
        for i in -4000..4000 {
            let x = f64::from(i) * 0.0131;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-14, "exp {x}");
        }
        for i in 1..4000 {
            let x = f64::from(i * i) * 0.37;
            assert!(
                (ln(x) - x.ln()).abs() < 1e-14 * x.ln().abs().max(1.0),
                "ln {x}"
            );
        }
        for i in 0..20_000 {
            let x = f64::from(i) * 51.7 / 0.99;
            let (s, c) = sin_cos(x);
            assert!(
                (s - x.sin()).abs() < 1e-13 && (c - x.cos()).abs() < 1e-13,
                "sin {x}"
            );
        }
    }
}
