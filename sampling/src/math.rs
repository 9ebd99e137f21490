//! `exp` and `ln` in plain f32 arithmetic.
//!
//! The platform's `expf` and `logf` differ from one C library to the next; these use only IEEE
//! additions and multiplications in a fixed order, so that a sampled token is the same on every
//! machine. Polynomials are those of the Cephes library (`expf.c`, `logf.c`); the relative error is
//! below 3e-7. Must not know of sampling.
#![allow(clippy::inline_always)] // Inlined into one function per instruction set, or it is not vector code.

/// `exp(x)` for `x <= 0`; 0 below -87 (where the result would be subnormal).
#[inline(always)]
pub(crate) fn exp_nonpositive(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x < -87.0 { -87.0 } else { x };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let mantissa = p * r * r + r + 1.0;
    let exponent = (rounded.to_bits().wrapping_sub(ROUND.to_bits())).wrapping_add(127) << 23;
    let value = mantissa * f32::from_bits(exponent);
    if x < -87.0 { 0.0 } else { value }
}

/// `ln(x)` for finite normal `x > 0`.
pub(crate) fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    // Split into 2^e * m with m in [sqrt(1/2), sqrt(2)).
    let mut e = ((bits >> 23) as i32 - 126) as f32;
    let mut m = f32::from_bits((bits & 0x007F_FFFF) | 0x3F00_0000);
    if m < std::f32::consts::FRAC_1_SQRT_2 {
        e -= 1.0;
        m = m + m - 1.0;
    } else {
        m -= 1.0;
    }
    let z = m * m;
    let mut p = 7.037_683_6e-2;
    p = p * m - 1.151_461e-1;
    p = p * m + 1.167_699_9e-1;
    p = p * m - 1.242_014_1e-1;
    p = p * m + 1.424_932_3e-1;
    p = p * m - 1.666_805_8e-1;
    p = p * m + 2.000_071_5e-1;
    p = p * m - 2.499_999_4e-1;
    p = p * m + 3.333_333e-1;
    let mut y = p * m * z;
    y += e * -2.121_944_4e-4;
    y -= 0.5 * z;
    m + y + e * 0.693_359_4
}
