//! Packed codes of eight rows to registers, two half lines at a time.

use std::arch::x86_64::*;

use super::super::format::{LINE, Width};

/// One packed form of codes.
pub(super) trait Codes {
    /// The packed form.
    const WIDTH: Width;
    /// Quads whose products fit a 16-bit sum: codes × 127 × 2 × this is below 32,768.
    const QUADS: usize;
    /// Whether codes are too large for 16-bit sums: their offset is taken off first.
    const SIGNED: bool = false;

    /// Half lines `2 * PAIR` and `2 * PAIR + 1` of a group.
    ///
    /// # Safety
    /// AVX2; `tile` is a group's tile, from the half's first row on.
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m256i, __m256i);
}

/// `Width::Four`.
pub(super) struct Four;
/// `Width::Five`.
pub(super) struct Five;
/// `Width::Six`.
pub(super) struct Six;
/// `Width::Eight`.
pub(super) struct Eight;

/// Loads half of line `line`.
///
/// # Safety
/// AVX2; the half line is readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn line(tile: *const u8, line: usize) -> __m256i {
    // SAFETY: by the contract; unaligned loads.
    unsafe { _mm256_loadu_si256(tile.add(line * LINE).cast()) }
}

/// Low and high nibbles of line `pair`.
///
/// # Safety
/// AVX2; the half line is readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibbles(tile: *const u8, pair: usize) -> (__m256i, __m256i) {
    // SAFETY: by the contract.
    let packed = unsafe { line(tile, pair) };
    let low = _mm256_set1_epi8(15);
    (
        _mm256_and_si256(packed, low),
        _mm256_and_si256(_mm256_srli_epi16::<4>(packed), low),
    )
}

/// `low | (high & mask)`.
#[inline]
#[target_feature(enable = "avx2")]
fn join(low: __m256i, high: __m256i, mask: i8) -> __m256i {
    _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(mask)))
}

impl Codes for Four {
    const WIDTH: Width = Width::Four;
    const QUADS: usize = 8;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m256i, __m256i) {
        // SAFETY: by the contract.
        unsafe { nibbles(tile, PAIR) }
    }
}

impl Codes for Five {
    const WIDTH: Width = Width::Five;
    const QUADS: usize = 4;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m256i, __m256i) {
        // SAFETY: by the contract.
        let ((even, odd), high) = unsafe { (nibbles(tile, PAIR), line(tile, 4)) };
        // Bit `2 * PAIR` (then the next) of each byte to place 4; neighbours are masked away.
        let (first, second) = match PAIR {
            0 => (_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<3>(high)),
            1 => (_mm256_slli_epi16::<2>(high), _mm256_slli_epi16::<1>(high)),
            2 => (high, _mm256_srli_epi16::<1>(high)),
            _ => (_mm256_srli_epi16::<2>(high), _mm256_srli_epi16::<3>(high)),
        };
        (join(even, first, 0x10), join(odd, second, 0x10))
    }
}

impl Codes for Six {
    const WIDTH: Width = Width::Six;
    const QUADS: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m256i, __m256i) {
        // SAFETY: by the contract.
        let ((even, odd), high) = unsafe { (nibbles(tile, PAIR), line(tile, 4 + PAIR / 2)) };
        // The pair's two bits each to places 4 and 5.
        let (first, second) = if PAIR.is_multiple_of(2) {
            (_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high))
        } else {
            (high, _mm256_srli_epi16::<2>(high))
        };
        (join(even, first, 0x30), join(odd, second, 0x30))
    }
}

impl Codes for Eight {
    const WIDTH: Width = Width::Eight;
    const QUADS: usize = 1;
    const SIGNED: bool = true;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m256i, __m256i) {
        // SAFETY: by the contract.
        unsafe { (line(tile, 2 * PAIR), line(tile, 2 * PAIR + 1)) }
    }
}
