//! Quantisation of rows of activations, up to sixteen groups at a time.
//!
//! What there is one of per group (largest magnitude, scale, sums) lies in the lanes of one register, so
//! that reductions and divisions are shared by the groups.

use std::arch::x86_64::*;

use super::super::format::GROUP;
use super::super::quantize::{FINE_BASE, Numbers, TINY, group_bytes, portable_row, steps};

/// Groups taken together: lanes of a register.
const TOGETHER: usize = 16;

/// Ties go to the even code.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Quantises one row, with the bits of the portable code.
///
/// # Safety
/// AVX-512 with VNNI; the rest as `quantize::quantize_row`.
pub(in super::super) unsafe fn quantize_row<const PLANES: usize>(values: &[f32], row: *mut u8) {
    let groups = values.len() / GROUP;
    let parts = groups.div_ceil(TOGETHER);
    for part in 0..parts {
        let part = groups * part / parts..groups * (part + 1) / parts;
        // SAFETY: by the contract; at most sixteen groups.
        unsafe {
            let target = row.add(part.start * group_bytes(PLANES));
            let values = &values[part.start * GROUP..part.end * GROUP];
            if !quantize_groups::<PLANES>(values, target) {
                portable_row::<PLANES>(values, target);
            }
        }
    }
}

/// Quantises up to sixteen groups; refuses if a value is not finite.
///
/// # Safety
/// AVX-512 with VNNI; `target` has room for the groups.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn quantize_groups<const PLANES: usize>(values: &[f32], target: *mut u8) -> bool {
    let groups = values.len() / GROUP;
    let mut magnitudes = [_mm512_setzero_si512(); TOGETHER];
    let mask = _mm512_set1_epi32(0x7fff_ffff);
    for (magnitude, values) in magnitudes.iter_mut().zip(values.chunks_exact(GROUP)) {
        // SAFETY: 32 values.
        let [first, second] = unsafe { load(values.as_ptr()) };
        *magnitude = _mm512_max_epi32(
            _mm512_and_si512(_mm512_castps_si512(first), mask),
            _mm512_and_si512(_mm512_castps_si512(second), mask),
        );
    }
    let largest = largest_of_each(&magnitudes);
    // As integers, magnitudes order like floats, with infinities and NaN above everything finite.
    let infinite = _mm512_set1_epi32(f32::INFINITY.to_bits() as i32);
    if _mm512_cmpge_epi32_mask(largest, infinite) != 0 {
        return false;
    }
    let largest = _mm512_castsi512_ps(largest);
    let codes = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, _mm512_set1_ps(TINY));
    let steps = _mm512_set1_ps(steps(PLANES));
    let scale = _mm512_maskz_div_ps(codes, largest, steps);
    let mut inverses = [0.0_f32; TOGETHER];
    // SAFETY: sixteen values.
    unsafe {
        _mm512_storeu_ps(
            inverses.as_mut_ptr(),
            _mm512_maskz_div_ps(codes, steps, largest),
        );
    };

    let mut quads = [_mm512_setzero_si512(); TOGETHER / 2];
    for (pair, quads) in quads.iter_mut().enumerate().take(groups.div_ceil(2)) {
        // The last group stands in for the one that an odd number lacks.
        let places = [2 * pair, (2 * pair + 1).min(groups - 1)];
        // SAFETY: groups of the values and of the target.
        *quads = unsafe { put_codes::<PLANES>(values, places, &inverses, target) };
    }
    let (first, second) = sums_of_each(&quads);
    let sum = _mm512_add_epi32(first, second);
    let zero = _mm512_setzero_si512();
    let scaled = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum));
    let numbers = transposed([
        _mm512_castps_si512(scale),
        _mm512_castps_si512(scaled),
        _mm512_sub_epi32(zero, sum),
        _mm512_sub_epi32(zero, first),
    ]);
    for (group, numbers) in numbers.iter().enumerate().take(groups) {
        // SAFETY: behind the group's codes.
        unsafe {
            let at = target.add(group * group_bytes(PLANES) + PLANES * GROUP);
            at.cast::<Numbers>().write(*numbers);
        }
    }
    true
}

/// A group's values.
///
/// # Safety
/// AVX-512; 32 readable values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
unsafe fn load(values: *const f32) -> [__m512; 2] {
    // SAFETY: by the contract; unaligned loads.
    unsafe {
        [
            _mm512_loadu_ps(values),
            _mm512_loadu_ps(values.add(GROUP / 2)),
        ]
    }
}

/// Writes the codes of two groups; returns the sums of their quads, eight each.
///
/// # Safety
/// AVX-512 with VNNI; `places` are groups of the values and of the target.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
unsafe fn put_codes<const PLANES: usize>(
    values: &[f32],
    places: [usize; 2],
    inverses: &[f32; TOGETHER],
    target: *mut u8,
) -> __m512i {
    let mut codes = [_mm512_setzero_si512(); 4];
    for (codes, group) in codes.chunks_exact_mut(2).zip(places) {
        // SAFETY: a group of the values.
        let x = unsafe { load(values.as_ptr().add(group * GROUP)) };
        let inverse = _mm512_set1_ps(inverses[group]);
        codes[0] = _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(x[0], inverse));
        codes[1] = _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(x[1], inverse));
    }
    let base = _mm512_set1_epi32(FINE_BASE);
    let mut low = codes;
    if PLANES == 2 {
        for (codes, low) in codes.iter_mut().zip(&mut low) {
            let high = high_digits(*codes);
            *low = _mm512_sub_epi32(*codes, _mm512_mullo_epi32(high, base));
            *codes = high;
        }
    }
    let ones = _mm512_set1_epi8(1);
    let mut sums = _mm512_setzero_si512();
    for (plane, codes) in [codes, low].into_iter().enumerate().take(PLANES) {
        let bytes = packed(codes);
        sums = _mm512_mullo_epi32(sums, base);
        sums = _mm512_dpbusd_epi32(sums, ones, bytes);
        // SAFETY: this plane of both groups.
        unsafe {
            let at = |group: usize| target.add(group * group_bytes(PLANES) + plane * GROUP);
            _mm256_storeu_si256(at(places[1]).cast(), _mm512_extracti64x4_epi64::<1>(bytes));
            _mm256_storeu_si256(at(places[0]).cast(), _mm512_castsi512_si256(bytes));
        }
    }
    sums
}

/// The high digits of two-digit codes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn high_digits(codes: __m512i) -> __m512i {
    let reciprocal = _mm512_set1_ps(1.0 / FINE_BASE as f32);
    _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(_mm512_cvtepi32_ps(codes), reciprocal))
}

/// Four registers of codes as bytes, in order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn packed([a, b, c, d]: [__m512i; 4]) -> __m512i {
    // Packing works within 128-bit lanes, which then hold a quad of each register.
    let bytes = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, bytes)
}

/// Lane `i`: the largest lane of register `i`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn largest_of_each(x: &[__m512i; TOGETHER]) -> __m512i {
    let mut quarters = [_mm512_setzero_si512(); 4];
    for (four, x) in quarters.iter_mut().zip(x.chunks_exact(4)) {
        // Of each 128-bit lane of four registers, the largest, side by side.
        let ab = _mm512_max_epi32(
            _mm512_unpacklo_epi32(x[0], x[1]),
            _mm512_unpackhi_epi32(x[0], x[1]),
        );
        let cd = _mm512_max_epi32(
            _mm512_unpacklo_epi32(x[2], x[3]),
            _mm512_unpackhi_epi32(x[2], x[3]),
        );
        *four = _mm512_max_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    let [a, b, c, d] = quarters;
    let halves = [larger_lanes(a, b), larger_lanes(c, d)];
    larger_lanes(halves[0], halves[1])
}

/// Of each register, the larger ones of neighbouring 128-bit lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn larger_lanes(a: __m512i, b: __m512i) -> __m512i {
    let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
    let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
    _mm512_max_epi32(even, odd)
}

/// Sums of the first and of the second half of sixteen groups, each register being the quads of two.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn sums_of_each(quads: &[__m512i; TOGETHER / 2]) -> (__m512i, __m512i) {
    let mut sums = [_mm512_setzero_si512(); 2];
    for (four, x) in sums.iter_mut().zip(quads.chunks_exact(4)) {
        let ab = _mm512_add_epi32(
            _mm512_unpacklo_epi32(x[0], x[1]),
            _mm512_unpackhi_epi32(x[0], x[1]),
        );
        let cd = _mm512_add_epi32(
            _mm512_unpacklo_epi32(x[2], x[3]),
            _mm512_unpackhi_epi32(x[2], x[3]),
        );
        *four = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    // 128-bit lanes: first halves of the even groups, their second halves, and those of the odd groups.
    let order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
    let first = _mm512_permutex2var_epi32(sums[0], order, sums[1]);
    let order = _mm512_add_epi32(order, _mm512_set1_epi32(4));
    let second = _mm512_permutex2var_epi32(sums[0], order, sums[1]);
    (first, second)
}

/// Numbers of sixteen groups from a register of each number.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn transposed([scale, scaled, sum, first]: [__m512i; 4]) -> [Numbers; TOGETHER] {
    let low = [
        _mm512_unpacklo_epi32(scale, scaled),
        _mm512_unpacklo_epi32(sum, first),
    ];
    let high = [
        _mm512_unpackhi_epi32(scale, scaled),
        _mm512_unpackhi_epi32(sum, first),
    ];
    // 128-bit lane `l` of register `i` is group `4 * l + i`.
    let rows = [
        _mm512_unpacklo_epi64(low[0], low[1]),
        _mm512_unpackhi_epi64(low[0], low[1]),
        _mm512_unpacklo_epi64(high[0], high[1]),
        _mm512_unpackhi_epi64(high[0], high[1]),
    ];
    let mut numbers = [Numbers::new(0.0, 0, 0); TOGETHER];
    for (at, row) in rows.into_iter().enumerate() {
        let lanes = [
            _mm512_extracti32x4_epi32::<0>(row),
            _mm512_extracti32x4_epi32::<1>(row),
            _mm512_extracti32x4_epi32::<2>(row),
            _mm512_extracti32x4_epi32::<3>(row),
        ];
        for (lane, value) in lanes.into_iter().enumerate() {
            let target = &raw mut numbers[4 * lane + at];
            // SAFETY: sixteen bytes.
            unsafe { _mm_storeu_si128(target.cast(), value) };
        }
    }
    numbers
}
