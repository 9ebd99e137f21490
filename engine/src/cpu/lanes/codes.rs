//! Sums of products of 8-bit codes: exact, so their order is nobody's business.
//!
//! Codes lie in quads: four rows of a matrix over 16 columns, neighbours row by row. Other operands
//! are digits of base 128, so that no intermediate sum of any instruction set saturates.

#[cfg(target_arch = "x86_64")]
#[allow(clippy::wildcard_imports)] // Intrinsics only.
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::{Avx2Lanes, Avx512Lanes};
use super::{LANES, Lanes, PortableLanes};

/// Integer companions of [`Lanes`]; the same promises.
pub(crate) trait CodeLanes: Copy {
    /// 64 codes, or four digits sixteen times.
    type Quads: Copy;
    /// Sixteen sums, below 2^31 in magnitude.
    type Sums: Copy;
    /// What [`Self::dot_offset`] adds besides, times the sum of the digits.
    const BIAS: i32;
    /// All sums `value`.
    fn splat_sum(value: i32) -> Self::Sums;
    /// 64 codes from memory.
    ///
    /// # Safety
    /// `source` points to 64 readable bytes; no alignment needed.
    unsafe fn load_quads(source: *const u8) -> Self::Quads;
    /// The four digits at `source`, sixteen times.
    ///
    /// # Safety
    /// `source` points to four readable bytes; no alignment needed.
    unsafe fn splat_quad(source: *const i8) -> Self::Quads;
    /// `sums` plus codes times digits; `codes` are 128 too large (and so unsigned, from 1 to 255; 0
    /// may count as anything), digits at most 127 in magnitude.
    fn dot_offset(sums: Self::Sums, codes: Self::Quads, digits: Self::Quads) -> Self::Sums;
    /// `sums` plus codes times digits, which are in 0..=127.
    fn dot(sums: Self::Sums, codes: Self::Quads, digits: Self::Quads) -> Self::Sums;
    /// 128 times `sums`.
    fn next_digit(sums: Self::Sums) -> Self::Sums;
    /// As f32, rounded to nearest.
    fn widen(sums: Self::Sums) -> Self;
    /// The low byte of each lane's bits to memory: a lane of `1.5 * 2^23 + n` stores `n` as an 8-bit
    /// code.
    ///
    /// # Safety
    /// `target` points to 16 writable values; no alignment needed.
    unsafe fn store_low_bytes(self, target: *mut u8);
    /// Lanes of `1.5 * 2^23 + n` as digits, `n = 128 * high + low`, with `low` in 0..=127; `n` is at
    /// most 127 * 128 in magnitude.
    ///
    /// # Safety
    /// Both targets are writable, 16 values each; no alignment needed.
    unsafe fn store_digits(self, high: *mut i8, low: *mut i8);
    /// As [`Self::store_digits`], of 64 numbers that are not negative, in fours: four of the first
    /// vector, four of the second and so on, then the next four of the first.
    ///
    /// # Safety
    /// Both targets are writable, 64 values each; no alignment needed.
    unsafe fn store_quads(numbers: [Self; 4], high: *mut i8, low: *mut i8);
}

impl CodeLanes for PortableLanes {
    type Quads = [u8; 4 * LANES];
    type Sums = [i32; LANES];
    const BIAS: i32 = 0;
    #[inline(always)]
    fn splat_sum(value: i32) -> Self::Sums {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load_quads(source: *const u8) -> Self::Quads {
        // SAFETY: the caller promises 64 bytes; the read is unaligned.
        unsafe { source.cast::<Self::Quads>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat_quad(source: *const i8) -> Self::Quads {
        // SAFETY: the caller promises four bytes; the read is unaligned.
        let quad = unsafe { source.cast::<[u8; 4]>().read_unaligned() };
        std::array::from_fn(|at| quad[at % 4])
    }
    #[inline(always)]
    fn dot_offset(sums: Self::Sums, codes: Self::Quads, digits: Self::Quads) -> Self::Sums {
        Self::dot(sums, codes.map(|code| code ^ 0x80), digits)
    }
    #[inline(always)]
    fn dot(mut sums: Self::Sums, codes: Self::Quads, digits: Self::Quads) -> Self::Sums {
        for at in 0..4 * LANES {
            sums[at / 4] += i32::from(codes[at] as i8) * i32::from(digits[at] as i8);
        }
        sums
    }
    #[inline(always)]
    fn next_digit(sums: Self::Sums) -> Self::Sums {
        sums.map(|sum| sum << 7)
    }
    #[inline(always)]
    fn widen(sums: Self::Sums) -> Self {
        let values = sums.map(|sum| sum as f32);
        // SAFETY: 16 values.
        unsafe { Self::load(values.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store_low_bytes(self, target: *mut u8) {
        let bytes = self.bits().map(|bits| bits as u8);
        // SAFETY: the caller promises 16 values.
        unsafe { target.cast::<[u8; LANES]>().write_unaligned(bytes) };
    }
    #[inline(always)]
    unsafe fn store_digits(self, high: *mut i8, low: *mut i8) {
        let bits = self.bits();
        // SAFETY: the caller promises 16 values each.
        unsafe {
            let (highs, lows) = (
                bits.map(|bits| (bits >> 7) as i8),
                bits.map(|bits| (bits & 127) as i8),
            );
            high.cast::<[i8; LANES]>().write_unaligned(highs);
            low.cast::<[i8; LANES]>().write_unaligned(lows);
        }
    }
    #[inline(always)]
    unsafe fn store_quads(numbers: [Self; 4], high: *mut i8, low: *mut i8) {
        for (vector, numbers) in numbers.into_iter().enumerate() {
            for (lane, bits) in numbers.bits().into_iter().enumerate() {
                let at = lane / 4 * 16 + vector * 4 + lane % 4;
                // SAFETY: 64 places each.
                unsafe {
                    high.add(at).write((bits >> 7 & 127) as i8);
                    low.add(at).write((bits & 127) as i8);
                }
            }
        }
    }
}

// SAFETY of every block below: as in `avx2`.
#[cfg(target_arch = "x86_64")]
impl CodeLanes for Avx2Lanes {
    type Quads = [__m256i; 2];
    type Sums = [__m256i; 2];
    const BIAS: i32 = 0;
    #[inline(always)]
    fn splat_sum(value: i32) -> Self::Sums {
        // SAFETY: see above.
        [unsafe { _mm256_set1_epi32(value) }; 2]
    }
    #[inline(always)]
    unsafe fn load_quads(source: *const u8) -> Self::Quads {
        // SAFETY: see above.
        unsafe {
            [
                _mm256_loadu_si256(source.cast()),
                _mm256_loadu_si256(source.add(32).cast()),
            ]
        }
    }
    #[inline(always)]
    unsafe fn splat_quad(source: *const i8) -> Self::Quads {
        // SAFETY: see above.
        [unsafe { _mm256_set1_epi32(source.cast::<i32>().read_unaligned()) }; 2]
    }
    #[inline(always)]
    fn dot_offset(mut sums: Self::Sums, codes: Self::Quads, digits: Self::Quads) -> Self::Sums {
        for half in 0..2 {
            // SAFETY: see above.
            unsafe {
                let codes = _mm256_xor_si256(codes[half], _mm256_set1_epi8(-128));
                // The digits' signs go to the codes.
                let products = _mm256_maddubs_epi16(
                    _mm256_abs_epi8(digits[half]),
                    _mm256_sign_epi8(codes, digits[half]),
                );
                let quads = _mm256_madd_epi16(products, _mm256_set1_epi16(1));
                sums[half] = _mm256_add_epi32(sums[half], quads);
            }
        }
        sums
    }
    #[inline(always)]
    fn dot(mut sums: Self::Sums, codes: Self::Quads, digits: Self::Quads) -> Self::Sums {
        for half in 0..2 {
            // SAFETY: see above.
            unsafe {
                let products = _mm256_maddubs_epi16(digits[half], codes[half]);
                let quads = _mm256_madd_epi16(products, _mm256_set1_epi16(1));
                sums[half] = _mm256_add_epi32(sums[half], quads);
            }
        }
        sums
    }
    #[inline(always)]
    fn next_digit([low, high]: Self::Sums) -> Self::Sums {
        // SAFETY: see above.
        unsafe { [_mm256_slli_epi32::<7>(low), _mm256_slli_epi32::<7>(high)] }
    }
    #[inline(always)]
    fn widen([low, high]: Self::Sums) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)) }
    }
    #[inline(always)]
    unsafe fn store_low_bytes(self, target: *mut u8) {
        // SAFETY: see above.
        unsafe {
            let bits = [_mm256_castps_si256(self.0), _mm256_castps_si256(self.1)];
            store_bytes(bits, 0xff, target);
        }
    }
    #[inline(always)]
    unsafe fn store_digits(self, high: *mut i8, low: *mut i8) {
        // SAFETY: see above.
        unsafe {
            let bits = [_mm256_castps_si256(self.0), _mm256_castps_si256(self.1)];
            store_bytes(bits, 0x7f, low.cast());
            let shifted = [
                _mm256_srli_epi32::<7>(bits[0]),
                _mm256_srli_epi32::<7>(bits[1]),
            ];
            store_bytes(shifted, 0xff, high.cast());
        }
    }
    #[inline(always)]
    unsafe fn store_quads([a, b, c, d]: [Self; 4], high: *mut i8, low: *mut i8) {
        // SAFETY: see above.
        unsafe {
            let lows = narrow_digits([a.0, b.0, c.0, d.0]);
            let highs = narrow_digits([a.1, b.1, c.1, d.1]);
            for (half, digits) in [lows, highs].into_iter().enumerate() {
                _mm256_storeu_si256(high.add(32 * half).cast(), digits[0]);
                _mm256_storeu_si256(low.add(32 * half).cast(), digits[1]);
            }
        }
    }
}

/// High and low digits of 32 numbers, each with 1.5 * 2^23 added, in fours.
///
/// # Safety
/// AVX2 is available.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn narrow_digits(numbers: [__m256; 4]) -> [__m256i; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let shift = _mm256_castps_si256(_mm256_set1_ps(12_582_912.0));
        let mut integers = [shift; 4];
        for (integers, numbers) in integers.iter_mut().zip(numbers) {
            *integers = _mm256_sub_epi32(_mm256_castps_si256(numbers), shift);
        }
        let [a, b, c, d] = integers;
        let (ab, cd) = (_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
        let mask = _mm256_set1_epi16(127);
        [
            _mm256_packus_epi16(_mm256_srli_epi16::<7>(ab), _mm256_srli_epi16::<7>(cd)),
            _mm256_packus_epi16(_mm256_and_si256(ab, mask), _mm256_and_si256(cd, mask)),
        ]
    }
}

/// The bits of each lane that `mask`, at most a byte, names.
///
/// # Safety
/// AVX2; `target` points to 16 writable bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn store_bytes([low, high]: [__m256i; 2], mask: i32, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let mask = _mm256_set1_epi32(mask);
        let packed = _mm256_packus_epi32(_mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
        // Packing works on each half of the registers; put the quarters in order.
        let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        let bytes = _mm_packus_epi16(
            _mm256_castsi256_si128(ordered),
            _mm256_extracti128_si256::<1>(ordered),
        );
        _mm_storeu_si128(target.cast(), bytes);
    }
}

// SAFETY of every block below: as in `avx512`; VNNI is part of what `lanes_kernel!` enables.
#[cfg(target_arch = "x86_64")]
impl<const UNIT: bool> CodeLanes for Avx512Lanes<UNIT> {
    type Quads = __m512i;
    type Sums = __m512i;
    const BIAS: i32 = 128;
    #[inline(always)]
    fn splat_sum(value: i32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn load_quads(source: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(source.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_quad(source: *const i8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(source.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    fn dot_offset(sums: __m512i, codes: __m512i, digits: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_dpbusd_epi32(sums, codes, digits) }
    }
    #[inline(always)]
    fn dot(sums: __m512i, codes: __m512i, digits: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_dpbusd_epi32(sums, digits, codes) }
    }
    #[inline(always)]
    fn next_digit(sums: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_slli_epi32::<7>(sums) }
    }
    #[inline(always)]
    fn widen(sums: __m512i) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_cvtepi32_ps(sums) })
    }
    #[inline(always)]
    unsafe fn store_low_bytes(self, target: *mut u8) {
        // SAFETY: see above.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(self.0));
            _mm_storeu_si128(target.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn store_digits(self, high: *mut i8, low: *mut i8) {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let highs = _mm512_cvtepi32_epi8(_mm512_srli_epi32::<7>(bits));
            let lows = _mm512_cvtepi32_epi8(_mm512_and_si512(bits, _mm512_set1_epi32(127)));
            _mm_storeu_si128(high.cast(), highs);
            _mm_storeu_si128(low.cast(), lows);
        }
    }
    #[inline(always)]
    unsafe fn store_quads([a, b, c, d]: [Self; 4], high: *mut i8, low: *mut i8) {
        // SAFETY: see above.
        unsafe {
            let shift = _mm512_castps_si512(_mm512_set1_ps(12_582_912.0));
            let a = _mm512_sub_epi32(_mm512_castps_si512(a.0), shift);
            let b = _mm512_sub_epi32(_mm512_castps_si512(b.0), shift);
            let c = _mm512_sub_epi32(_mm512_castps_si512(c.0), shift);
            let d = _mm512_sub_epi32(_mm512_castps_si512(d.0), shift);
            let (ab, cd) = (_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d));
            let mask = _mm512_set1_epi16(127);
            let highs = _mm512_packus_epi16(_mm512_srli_epi16::<7>(ab), _mm512_srli_epi16::<7>(cd));
            let lows = _mm512_packus_epi16(_mm512_and_si512(ab, mask), _mm512_and_si512(cd, mask));
            _mm512_storeu_si512(high.cast(), highs);
            _mm512_storeu_si512(low.cast(), lows);
        }
    }
}
