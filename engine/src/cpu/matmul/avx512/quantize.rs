//! Quantisation of rows of activations, up to sixteen groups at a time.
//!
//! What there is one of per group (largest magnitude, scale, sums) lies in the lanes of one register, so
//! that reductions and divisions are shared by the groups.

use std::arch::x86_64::*;

use super::super::format::GROUP;
use super::super::quantize::{
    GROUP_BYTES, LOW_STEPS, Numbers, SCALE, STEPS, TINY, Target, portable_row,
};

/// Groups taken together: lanes of a register.
const TOGETHER: usize = 16;

/// Ties go to the even code.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Quantises one row, with the bits of the portable code.
///
/// # Safety
/// AVX-512 with VNNI; the rest as `quantize::portable_row`.
pub(in super::super) unsafe fn quantize_row(values: &[f32], limit: f32, target: Target<'_>) {
    let groups = values.len() / GROUP;
    let parts = groups.div_ceil(TOGETHER);
    for part in 0..parts {
        let part = groups * part / parts..groups * (part + 1) / parts;
        // SAFETY: by the contract; at most sixteen groups.
        unsafe {
            let target = target.from(part.start);
            let values = &values[part.start * GROUP..part.end * GROUP];
            if !quantize_groups(values, limit, target) {
                portable_row(values, limit, target);
            }
        }
    }
}

/// Quantises up to sixteen groups; refuses if a value is not finite.
///
/// # Safety
/// As [`quantize_row`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn quantize_groups(values: &[f32], limit: f32, target: Target<'_>) -> bool {
    let groups = values.as_chunks::<GROUP>().0;
    let mut magnitudes = [_mm512_setzero_si512(); TOGETHER];
    let mask = _mm512_set1_epi32(0x7fff_ffff);
    for (magnitude, values) in magnitudes.iter_mut().zip(groups) {
        let [first, second] = load(values);
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
    let coded = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, _mm512_set1_ps(TINY));
    let steps = _mm512_set1_ps(STEPS);
    let scale = _mm512_maskz_div_ps(coded, largest, steps);
    let inverse = lanes(_mm512_maskz_div_ps(coded, steps, largest));
    let mut quads = [_mm512_setzero_si512(); TOGETHER / 2];
    for (pair, quads) in quads.iter_mut().enumerate().take(groups.len().div_ceil(2)) {
        // The last group stands in for the one that an odd number lacks.
        let places = [2 * pair, (2 * pair + 1).min(groups.len() - 1)];
        // SAFETY: groups of the values and of the target.
        *quads = unsafe { put_codes(groups, places, &inverse, target.row) };
    }

    let squares = _mm512_mul_ps(largest, largest);
    let stand_out = _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(coded, squares, _mm512_set1_ps(limit));
    let mut low_sums = [0.0; TOGETHER];
    if stand_out != 0 {
        let largest = lanes(largest);
        for (group, values) in groups.iter().enumerate() {
            if stand_out >> group & 1 == 1 {
                // SAFETY: a group of the row, whose second digits are `target.low` after the first.
                low_sums[group] = unsafe {
                    let at = target.row.add(target.low + group * GROUP_BYTES);
                    put_low(values, largest[group], at)
                };
            }
        }
    }
    for group in 0..groups.len() {
        target.mark(group, stand_out >> group & 1 == 1);
    }
    // SAFETY: room for the groups.
    unsafe { put_numbers(groups.len(), scale, &quads, &low_sums, target.row) };
    true
}

/// Writes the second digits of a group of largest magnitude `largest`; returns their scaled sum.
///
/// # Safety
/// AVX-512 with VNNI; `at` has room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
unsafe fn put_low(values: &[f32; GROUP], largest: f32, at: *mut u8) -> f32 {
    let (scale, inverse) = (largest / STEPS, STEPS / largest);
    let (scales, inverses) = (_mm512_set1_ps(scale), _mm512_set1_ps(inverse));
    let finer = _mm512_set1_ps(inverse * LOW_STEPS);
    let mut sums = [0; 2];
    for (half, x) in load(values).into_iter().enumerate() {
        let high = _mm512_roundscale_ps::<NEAREST>(_mm512_mul_ps(x, inverses));
        let rest = _mm512_fnmadd_ps(scales, high, x);
        let codes = _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(rest, finer));
        sums[half] = _mm512_reduce_add_epi32(codes);
        // SAFETY: half of the group's codes.
        unsafe {
            let at = at.add(half * GROUP / 2).cast();
            _mm_storeu_si128(at, _mm512_cvtsepi32_epi8(codes));
        }
    }
    let numbers = Numbers::new(scale / LOW_STEPS, sums[0] + sums[1], sums[0]);
    // SAFETY: behind the codes.
    unsafe { at.add(SCALE).cast::<Numbers>().write(numbers) };
    numbers.scaled_sum
}

/// Sixteen lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn lanes(register: __m512) -> [f32; TOGETHER] {
    let mut lanes = [0.0; TOGETHER];
    // SAFETY: sixteen values.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), register) };
    lanes
}

/// Writes the numbers of the first `groups` groups.
///
/// # Safety
/// AVX-512; `row` has room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
unsafe fn put_numbers(
    groups: usize,
    scale: __m512,
    quads: &[__m512i; TOGETHER / 2],
    low_sums: &[f32; TOGETHER],
    row: *mut u8,
) {
    let (first, second) = sums_of_each(quads);
    let sum = _mm512_add_epi32(first, second);
    let zero = _mm512_setzero_si512();
    // SAFETY: sixteen values.
    let low_sums = unsafe { _mm512_loadu_ps(low_sums.as_ptr()) };
    let scaled = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum));
    let numbers = transposed([
        _mm512_castps_si512(scale),
        _mm512_castps_si512(_mm512_add_ps(scaled, low_sums)),
        _mm512_sub_epi32(zero, sum),
        _mm512_sub_epi32(zero, first),
    ]);
    for (group, numbers) in numbers.iter().enumerate().take(groups) {
        // SAFETY: behind the group's codes.
        unsafe {
            let at = row.add(group * GROUP_BYTES + SCALE);
            at.cast::<Numbers>().write(*numbers);
        }
    }
}

/// A group's values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
fn load(values: &[f32; GROUP]) -> [__m512; 2] {
    let at = values.as_ptr();
    // SAFETY: 32 values; unaligned loads.
    unsafe { [_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(GROUP / 2))] }
}

/// Writes the codes of two groups; returns the sums of their quads, eight each.
///
/// # Safety
/// AVX-512 with VNNI; `row` has room for `places`, which are of `groups`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline]
unsafe fn put_codes(
    groups: &[[f32; GROUP]],
    places: [usize; 2],
    inverses: &[f32; TOGETHER],
    row: *mut u8,
) -> __m512i {
    let mut codes = [_mm512_setzero_si512(); 4];
    for (codes, group) in codes.chunks_exact_mut(2).zip(places) {
        let x = load(&groups[group]);
        let inverse = _mm512_set1_ps(inverses[group]);
        codes[0] = _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(x[0], inverse));
        codes[1] = _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(x[1], inverse));
    }
    let bytes = packed(codes);
    // SAFETY: codes of both groups.
    unsafe {
        let [first, second] = places.map(|group| row.add(group * GROUP_BYTES));
        _mm256_storeu_si256(second.cast(), _mm512_extracti64x4_epi64::<1>(bytes));
        _mm256_storeu_si256(first.cast(), _mm512_castsi512_si256(bytes));
    }
    _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes)
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
