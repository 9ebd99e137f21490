//! Two 256-bit registers: lanes 0 to 7 and 8 to 15.

#[allow(clippy::wildcard_imports)] // Intrinsics only.
use std::arch::x86_64::*;

use super::{BF16_FLOOR, Lanes};

/// Two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Lanes(pub(super) __m256, pub(super) __m256);

/// [`super::bf16_bits`] of eight values, each in the low half of its lane.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
unsafe fn bf16_lanes(values: __m256) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm256_castps_si256(values);
        let top = _mm256_srli_epi32::<16>(bits);
        let bias = _mm256_add_epi32(
            _mm256_and_si256(top, _mm256_set1_epi32(1)),
            _mm256_set1_epi32(0x7fff),
        );
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, bias));
        let quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
        let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), values);
        let small = _mm256_cmp_ps::<_CMP_LT_OQ>(magnitude, _mm256_set1_ps(BF16_FLOOR));
        _mm256_andnot_si256(
            _mm256_castps_si256(small),
            _mm256_blendv_epi8(rounded, quiet, nan),
        )
    }
}

// SAFETY of every block below: values of this type exist only in functions compiled with AVX2 and
// FMA (`lanes_kernel!`), and pointers are good for what the trait's caller promises.
impl Lanes for Avx2Lanes {
    type Pairs = (__m256i, __m256i);
    const WIDE: bool = false;
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see above.
        let eight = unsafe { _mm256_set1_ps(value) };
        Self(eight, eight)
    }
    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_loadu_ps(source), _mm256_loadu_ps(source.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(target, self.0);
            _mm256_storeu_ps(target.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(source: *const u16) -> Self::Pairs {
        // SAFETY: see above.
        unsafe {
            (
                _mm256_loadu_si256(source.cast()),
                _mm256_loadu_si256(source.add(16).cast()),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, target: *mut u16) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_si256(target.cast(), round_sixteen(self));
        }
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        // SAFETY: see above.
        unsafe {
            Self(
                _mm256_permute_ps::<0b10_11_00_01>(self.0),
                _mm256_permute_ps::<0b10_11_00_01>(self.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn splat_pair(source: *const u16) -> Self::Pairs {
        // SAFETY: see above.
        let eight = unsafe { _mm256_set1_epi32(source.cast::<i32>().read_unaligned()) };
        (eight, eight)
    }
    #[inline(always)]
    fn without_seconds((low, high): Self::Pairs) -> Self::Pairs {
        // SAFETY: see above.
        unsafe {
            let firsts = _mm256_set1_epi32(0xffff);
            (
                _mm256_and_si256(low, firsts),
                _mm256_and_si256(high, firsts),
            )
        }
    }
    #[inline(always)]
    fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs) -> Self {
        // SAFETY: see above.
        unsafe { Self(dot_eight(self.0, a.0, b.0), dot_eight(self.1, a.1, b.1)) }
    }
    #[inline(always)]
    fn round_to_pairs(low: Self, high: Self) -> Self::Pairs {
        // SAFETY: see above.
        unsafe { (round_sixteen(low), round_sixteen(high)) }
    }
    #[inline(always)]
    unsafe fn store_pairs(pairs: Self::Pairs, target: *mut u16) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_si256(target.cast(), pairs.0);
            _mm256_storeu_si256(target.add(16).cast(), pairs.1);
        }
    }
    #[inline(always)]
    fn any_greater(self, other: Self) -> bool {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, other.0);
            let high = _mm256_cmp_ps::<_CMP_GT_OQ>(self.1, other.1);
            _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0
        }
    }
    #[inline(always)]
    fn any_nan(self) -> bool {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            let high = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.1, self.1);
            _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0
        }
    }
    #[inline(always)]
    fn without_below(self, limit: f32) -> Self {
        // SAFETY: see above.
        unsafe {
            let (limit, sign) = (_mm256_set1_ps(limit), _mm256_set1_ps(-0.0));
            let low = _mm256_cmp_ps::<_CMP_NLT_UQ>(_mm256_andnot_ps(sign, self.0), limit);
            let high = _mm256_cmp_ps::<_CMP_NLT_UQ>(_mm256_andnot_ps(sign, self.1), limit);
            Self(_mm256_and_ps(low, self.0), _mm256_and_ps(high, self.1))
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            Self(
                _mm256_add_ps(self.0, other.0),
                _mm256_add_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            Self(
                _mm256_sub_ps(self.0, other.0),
                _mm256_sub_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            Self(
                _mm256_mul_ps(self.0, other.0),
                _mm256_mul_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            Self(
                _mm256_div_ps(self.0, other.0),
                _mm256_div_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            Self(
                _mm256_fmadd_ps(self.0, factor.0, addend.0),
                _mm256_fmadd_ps(self.1, factor.1, addend.1),
            )
        }
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            Self(
                _mm256_max_ps(self.0, other.0),
                _mm256_max_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            Self(
                _mm256_min_ps(self.0, other.0),
                _mm256_min_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn where_less(self, value: Self, limit: Self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(value.0, limit.0);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(value.1, limit.1);
            Self(
                _mm256_blendv_ps(other.0, self.0, low),
                _mm256_blendv_ps(other.1, self.1, high),
            )
        }
    }
    #[inline(always)]
    fn zero_where_less(self, value: Self, limit: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(value.0, limit.0);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(value.1, limit.1);
            Self(
                _mm256_andnot_ps(low, self.0),
                _mm256_andnot_ps(high, self.1),
            )
        }
    }
    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let count = _mm256_set1_epi32(count.min(16) as i32);
            let low = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            let high = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
            Self(
                _mm256_blendv_ps(other.0, self.0, _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(other.1, self.1, _mm256_castsi256_ps(high)),
            )
        }
    }
    #[inline(always)]
    fn scale_by_power(self, shifted: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted.0));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted.1));
            Self(
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(self.0), low)),
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(self.1), high)),
            )
        }
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_add_ps(self.0, self.1);
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
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
}

/// Half of [`Lanes::dot_pairs`].
///
/// # Safety
/// AVX2 and FMA.
#[inline(always)]
unsafe fn dot_eight(sum: __m256, a: __m256i, b: __m256i) -> __m256 {
    // SAFETY: by the contract.
    unsafe {
        let seconds = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        let second = |pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, seconds));
        let first = |pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
        let sum = _mm256_fmadd_ps(second(a), second(b), sum);
        _mm256_fmadd_ps(first(a), first(b), sum)
    }
}

/// [`super::bf16_bits`] of sixteen values.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn round_sixteen(values: Avx2Lanes) -> __m256i {
    // SAFETY: by the contract.
    unsafe {
        // Packing works on each half of the registers; put the quarters in order.
        let packed = _mm256_packus_epi32(bf16_lanes(values.0), bf16_lanes(values.1));
        _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
    }
}
