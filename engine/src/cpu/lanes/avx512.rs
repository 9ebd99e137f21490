//! One 512-bit register.

#[allow(clippy::wildcard_imports)] // Intrinsics only.
use std::arch::x86_64::*;

use super::{BF16_FLOOR, Lanes};

/// A register; with `UNIT`, dot products of pairs and rounding are the bf16 unit's.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Lanes<const UNIT: bool>(pub(super) __m512);

// SAFETY of every block below: values of this type exist only in functions compiled with AVX-512
// F, BW, VL, DQ and VNNI, with `UNIT` BF16 too (`lanes_kernel!`), and pointers are good for what the trait's caller promises.
impl<const UNIT: bool> Lanes for Avx512Lanes<UNIT> {
    type Pairs = __m512i;
    const WIDE: bool = true;
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_loadu_ps(source) })
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(target, self.0) }
    }
    #[inline(always)]
    unsafe fn load_pairs(source: *const u16) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(source.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_pair(source: *const u16) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(source.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    fn without_seconds(pairs: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff)) }
    }
    #[inline(always)]
    fn dot_pairs(self, a: __m512i, b: __m512i) -> Self {
        // SAFETY: see above; the transmuted types are all 512 plain bits.
        unsafe {
            if UNIT {
                let a = std::mem::transmute::<__m512i, __m512bh>(a);
                let b = std::mem::transmute::<__m512i, __m512bh>(b);
                return Self(_mm512_dpbf16_ps(self.0, a, b));
            }
            let seconds = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            let second = |pairs| _mm512_castsi512_ps(_mm512_and_si512(pairs, seconds));
            let first = |pairs| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
            let sum = _mm512_fmadd_ps(second(a), second(b), self.0);
            Self(_mm512_fmadd_ps(first(a), first(b), sum))
        }
    }
    #[inline(always)]
    fn round_to_pairs(low: Self, high: Self) -> __m512i {
        // SAFETY: see above; the transmuted types are all 512 plain bits.
        unsafe {
            if UNIT {
                return std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(
                    high.0, low.0,
                ));
            }
            let low = _mm512_castsi256_si512(round_sixteen(low.0));
            _mm512_inserti64x4::<1>(low, round_sixteen(high.0))
        }
    }
    #[inline(always)]
    unsafe fn store_pairs(pairs: __m512i, target: *mut u16) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(target.cast(), pairs) }
    }
    #[inline(always)]
    fn any_greater(self, other: Self) -> bool {
        // SAFETY: see above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0) != 0 }
    }
    #[inline(always)]
    fn any_nan(self) -> bool {
        // SAFETY: see above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0) != 0 }
    }
    #[inline(always)]
    fn without_below(self, limit: f32) -> Self {
        // SAFETY: see above.
        unsafe {
            let magnitude = _mm512_abs_ps(self.0);
            let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(magnitude, _mm512_set1_ps(limit));
            Self(_mm512_maskz_mov_ps(kept, self.0))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, target: *mut u16) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(target.cast(), round_sixteen(self.0)) }
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_permute_ps::<0b10_11_00_01>(self.0) })
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn where_less(self, value: Self, limit: Self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(value.0, limit.0);
            Self(_mm512_mask_blend_ps(less, other.0, self.0))
        }
    }
    #[inline(always)]
    fn zero_where_less(self, value: Self, limit: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            // Not less than: true for not-a-number.
            let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(value.0, limit.0);
            Self(_mm512_maskz_mov_ps(kept, self.0))
        }
    }
    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        let mask = if count >= 16 {
            u16::MAX
        } else {
            (1 << count) - 1
        };
        // SAFETY: see above.
        Self(unsafe { _mm512_mask_blend_ps(mask, other.0, self.0) })
    }
    #[inline(always)]
    fn scale_by_power(self, shifted: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted.0));
            let bits = _mm512_add_epi32(_mm512_castps_si512(self.0), exponent);
            Self(_mm512_castsi512_ps(bits))
        }
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let high = _mm512_extractf32x8_ps::<1>(self.0);
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), high);
            let four = _mm_add_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let high = _mm512_extractf32x8_ps::<1>(self.0);
            let eight = _mm256_max_ps(_mm512_castps512_ps256(self.0), high);
            let four = _mm_max_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
}

/// [`super::bf16_bits`] of sixteen values.
///
/// # Safety
/// AVX-512 F and BW.
#[inline(always)]
unsafe fn round_sixteen(values: __m512) -> __m256i {
    // SAFETY: by the contract.
    unsafe {
        let bits = _mm512_castps_si512(values);
        let top = _mm512_srli_epi32::<16>(bits);
        let bias = _mm512_add_epi32(
            _mm512_and_si512(top, _mm512_set1_epi32(1)),
            _mm512_set1_epi32(0x7fff),
        );
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, bias));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
        let quiet = _mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40));
        // Not less than: true for not-a-number.
        let kept =
            _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(values), _mm512_set1_ps(BF16_FLOOR));
        _mm512_maskz_cvtepi32_epi16(kept, quiet)
    }
}
