//! Scales of a panel's sixteen rows as f32 lanes.

use std::arch::x86_64::*;

use super::super::format::{GroupPlace, Scaling};

/// One way of storing scales.
pub(super) trait Scales {
    /// The stored form.
    const SCALING: Scaling;

    /// The scales of a group, and the scales of its second half (`SuperHalves`) or its minimums.
    ///
    /// # Safety
    /// AVX-512 F; `place` is a group of the panel.
    unsafe fn load(panel: *const u8, place: GroupPlace) -> (__m512, __m512);
}

/// `Scaling::Offset`, with the offset.
pub(super) struct Offset<const OFFSET: i32>;
/// `Scaling::Minimum`.
pub(super) struct Minimum;
/// `Scaling::SuperMinimum`.
pub(super) struct SuperMinimum;
/// `Scaling::SuperHalves`.
pub(super) struct SuperHalves;

/// Sixteen halves as singles.
///
/// # Safety
/// AVX-512 F; 32 readable bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn halves(at: *const u8) -> __m512 {
    // SAFETY: by the contract; an unaligned load.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(at.cast()) })
}

impl<const OFFSET: i32> Scales for Offset<OFFSET> {
    const SCALING: Scaling = Scaling::Offset(OFFSET);

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(panel: *const u8, place: GroupPlace) -> (__m512, __m512) {
        // SAFETY: by the contract.
        unsafe { (halves(panel.add(place.header)), _mm512_setzero_ps()) }
    }
}

impl Scales for Minimum {
    const SCALING: Scaling = Scaling::Minimum;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(panel: *const u8, place: GroupPlace) -> (__m512, __m512) {
        // SAFETY: by the contract.
        unsafe {
            let at = panel.add(place.header);
            (halves(at), halves(at.add(32)))
        }
    }
}

impl Scales for SuperMinimum {
    const SCALING: Scaling = Scaling::SuperMinimum;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(panel: *const u8, place: GroupPlace) -> (__m512, __m512) {
        // SAFETY: by the contract.
        let (d, dmin, s, m) = unsafe {
            let (header, scales) = (panel.add(place.header), panel.add(place.scales));
            let small = |at: *const u8| _mm_loadu_si128(at.cast());
            (
                halves(header),
                halves(header.add(32)),
                small(scales),
                small(scales.add(16)),
            )
        };
        let float = |bytes| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
        // The product is exact, so negating one factor negates it.
        let negative = _mm512_sub_ps(_mm512_set1_ps(-0.0), dmin);
        (
            _mm512_mul_ps(d, float(s)),
            _mm512_mul_ps(negative, float(m)),
        )
    }
}

impl Scales for SuperHalves {
    const SCALING: Scaling = Scaling::SuperHalves;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(panel: *const u8, place: GroupPlace) -> (__m512, __m512) {
        // SAFETY: by the contract.
        let (d, first, second) = unsafe {
            let (header, scales) = (panel.add(place.header), panel.add(place.scales));
            let small = |at: *const u8| _mm_loadu_si128(at.cast());
            (halves(header), small(scales), small(scales.add(16)))
        };
        let float = |bytes| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
        (
            _mm512_mul_ps(d, float(first)),
            _mm512_mul_ps(d, float(second)),
        )
    }
}
