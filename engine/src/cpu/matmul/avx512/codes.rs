//! Packed codes to registers, two lines at a time.

use std::arch::x86_64::*;

use super::super::format::{LINE, Width};

/// One packed form of codes.
pub(super) trait Codes {
    /// The packed form.
    const WIDTH: Width;

    /// Lines `2 * PAIR` and `2 * PAIR + 1` of a group.
    ///
    /// # Safety
    /// AVX-512 BW; `tile` is a group's tile.
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m512i, __m512i);
}

/// `Width::Four`.
pub(super) struct Four;
/// `Width::Five`.
pub(super) struct Five;
/// `Width::Six`.
pub(super) struct Six;
/// `Width::Eight`.
pub(super) struct Eight;

/// Loads line `line`.
///
/// # Safety
/// AVX-512 F; the line is readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn line(tile: *const u8, line: usize) -> __m512i {
    // SAFETY: by the contract; unaligned loads.
    unsafe { _mm512_loadu_si512(tile.add(line * LINE).cast()) }
}

/// Low and high nibbles of line `pair`.
///
/// # Safety
/// AVX-512 BW; the line is readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn nibbles(tile: *const u8, pair: usize) -> (__m512i, __m512i) {
    // SAFETY: by the contract.
    let packed = unsafe { line(tile, pair) };
    let low = _mm512_set1_epi8(15);
    (
        _mm512_and_si512(packed, low),
        _mm512_and_si512(_mm512_srli_epi16::<4>(packed), low),
    )
}

/// `low | (high & mask)`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn join(low: __m512i, high: __m512i, mask: i8) -> __m512i {
    // Truth table of a | (b & c).
    _mm512_ternarylogic_epi32::<0xf8>(low, high, _mm512_set1_epi8(mask))
}

impl Codes for Four {
    const WIDTH: Width = Width::Four;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m512i, __m512i) {
        // SAFETY: by the contract.
        unsafe { nibbles(tile, PAIR) }
    }
}

impl Codes for Five {
    const WIDTH: Width = Width::Five;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m512i, __m512i) {
        // SAFETY: by the contract.
        let ((even, odd), high) = unsafe { (nibbles(tile, PAIR), line(tile, 4)) };
        // Bit `2 * PAIR` (then the next) of each byte to place 4; neighbours are masked away.
        let (first, second) = match PAIR {
            0 => (_mm512_slli_epi16::<4>(high), _mm512_slli_epi16::<3>(high)),
            1 => (_mm512_slli_epi16::<2>(high), _mm512_slli_epi16::<1>(high)),
            2 => (high, _mm512_srli_epi16::<1>(high)),
            _ => (_mm512_srli_epi16::<2>(high), _mm512_srli_epi16::<3>(high)),
        };
        (join(even, first, 0x10), join(odd, second, 0x10))
    }
}

impl Codes for Six {
    const WIDTH: Width = Width::Six;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m512i, __m512i) {
        // SAFETY: by the contract.
        let ((even, odd), high) = unsafe { (nibbles(tile, PAIR), line(tile, 4 + PAIR / 2)) };
        // The pair's two bits each to places 4 and 5.
        let (first, second) = if PAIR.is_multiple_of(2) {
            (_mm512_slli_epi16::<4>(high), _mm512_slli_epi16::<2>(high))
        } else {
            (high, _mm512_srli_epi16::<2>(high))
        };
        (join(even, first, 0x30), join(odd, second, 0x30))
    }
}

impl Codes for Eight {
    const WIDTH: Width = Width::Eight;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn pair<const PAIR: usize>(tile: *const u8) -> (__m512i, __m512i) {
        // SAFETY: by the contract.
        unsafe { (line(tile, 2 * PAIR), line(tile, 2 * PAIR + 1)) }
    }
}
