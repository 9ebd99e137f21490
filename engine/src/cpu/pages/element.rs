//! How single values are held in a page: rounded on the way in, exact on the way out.
//!
//! It must not know which tokens are written when.

use crate::cpu::lanes::{BF16_FLOOR, LANES, Lanes};

/// How one value is held in a page.
pub(crate) trait Element: Copy + Default {
    /// Rows of a matrix that are interleaved.
    const ROWS: usize;
    /// One value of each of [`Self::ROWS`] rows.
    type Group: Copy;
    /// What the values of one token and head have in common.
    type Scale: Copy;
    /// The scale of `head`, K or V of one token and head.
    ///
    /// # Safety
    /// As [`Lanes`] says.
    unsafe fn scale<V: Lanes>(head: &[f32]) -> Self::Scale;
    /// Rounds to nearest, ties to even.
    ///
    /// # Safety
    /// As [`Lanes`] says.
    unsafe fn round<V: Lanes>(values: V, scale: Self::Scale) -> [Self; LANES];
    /// Writes a token's scale, if pages hold any, into those of its head.
    ///
    /// # Safety
    /// `scales` are there, and the slot's is the caller's to write.
    unsafe fn keep_scale(scale: Self::Scale, scales: *mut f32, slot: usize);

    /// Position of (row, column) in a matrix whose rows are interleaved: rows that are too few for a
    /// whole group at the end are interleaved among themselves.
    #[inline(always)]
    fn place(row: usize, column: usize, rows: usize, columns: usize) -> usize {
        let first = row / Self::ROWS * Self::ROWS;
        let together = Self::ROWS.min(rows - first);
        first * columns + column * together + (row - first)
    }
}

/// An element that is a value by itself.
pub(crate) trait Plain: Element<Scale = ()> {
    /// Exact.
    fn widen(self) -> f32;
}

/// bfloat16 bits as [`bf16_bits`](crate::cpu::lanes::bf16_bits) makes them.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);

impl Bf16 {
    /// The bits.
    pub(crate) fn bits(self) -> u16 {
        self.0
    }
}

impl Element for Bf16 {
    const ROWS: usize = 2;
    type Group = [Self; 2];
    type Scale = ();
    #[inline(always)]
    unsafe fn scale<V: Lanes>(_: &[f32]) {}
    #[inline(always)]
    unsafe fn round<V: Lanes>(values: V, (): ()) -> [Self; LANES] {
        let mut out = [Self(0); LANES];
        // SAFETY: 16 values, transparent over their bits.
        unsafe { values.store_bf16(out.as_mut_ptr().cast()) };
        out
    }
    #[inline(always)]
    unsafe fn keep_scale((): (), _: *mut f32, _: usize) {}
}

impl Plain for Bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl Element for half::f16 {
    const ROWS: usize = 2;
    type Group = [Self; 2];
    type Scale = ();
    #[inline(always)]
    unsafe fn scale<V: Lanes>(_: &[f32]) {}
    #[inline(always)]
    unsafe fn round<V: Lanes>(values: V, (): ()) -> [Self; LANES] {
        // SAFETY: the caller's promise.
        unsafe { <f32 as Element>::round(values, ()) }.map(Self::from_f32)
    }
    #[inline(always)]
    unsafe fn keep_scale((): (), _: *mut f32, _: usize) {}
}

impl Plain for half::f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for f32 {
    const ROWS: usize = 2;
    type Group = [Self; 2];
    type Scale = ();
    #[inline(always)]
    unsafe fn scale<V: Lanes>(_: &[f32]) {}
    #[inline(always)]
    unsafe fn round<V: Lanes>(values: V, (): ()) -> [Self; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: 16 values.
        unsafe { values.store(out.as_mut_ptr()) };
        out
    }
    #[inline(always)]
    unsafe fn keep_scale((): (), _: *mut f32, _: usize) {}
}

impl Plain for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

/// Codes from zero to a head's largest magnitude.
const STEPS: f32 = 127.0;

/// A code of -127 to 127, held as a byte `OFFSET` larger.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Code<const OFFSET: u8>(u8);

/// Of K: what multiplies digits that have signs is unsigned.
pub(crate) type KeyCode = Code<128>;
/// Of V.
pub(crate) type ValueCode = Code<0>;

impl<const OFFSET: u8> Default for Code<OFFSET> {
    fn default() -> Self {
        Self(OFFSET)
    }
}

/// How the codes of one token and head relate to values.
#[derive(Clone, Copy)]
pub(crate) struct CodeScale {
    /// Value of code 1: the largest magnitude over [`STEPS`]; not-a-number where any value is none
    /// or infinite.
    step: f32,
    /// Codes per unit; 0 where all codes are 0.
    inverse: f32,
}

impl<const OFFSET: u8> Element for Code<OFFSET> {
    const ROWS: usize = 4;
    type Group = [Self; 4];
    type Scale = CodeScale;
    #[inline(always)]
    unsafe fn scale<V: Lanes>(head: &[f32]) -> CodeScale {
        let zero = V::splat(0.0);
        let (mut largest, mut finite) = (zero, zero);
        for at in (0..head.len()).step_by(LANES) {
            // SAFETY: as many values as `head` has there.
            let values = unsafe { load::<V>(&head[at..], LANES.min(head.len() - at)) };
            largest = values.max(zero.sub(values)).max(largest);
            // 0, or not-a-number.
            finite = values.fma(zero, finite);
        }
        let largest = largest.largest();
        let empty = |step| CodeScale { step, inverse: 0.0 };
        if finite.sum().is_nan() {
            empty(f32::NAN)
        } else if largest < BF16_FLOOR {
            empty(0.0)
        } else {
            CodeScale {
                step: largest / STEPS,
                inverse: STEPS / largest,
            }
        }
    }
    #[inline(always)]
    unsafe fn round<V: Lanes>(values: V, scale: CodeScale) -> [Self; LANES] {
        // Adding it rounds to an integer, which the low byte then holds, `OFFSET` larger.
        let shift = 12_582_912.0 + f32::from(OFFSET); // 1.5 * 2^23
        let mut out = [Self(OFFSET); LANES];
        if scale.inverse > 0.0 {
            let shifted = values.fma(V::splat(scale.inverse), V::splat(shift));
            // SAFETY: 16 values, transparent over their bytes.
            unsafe { shifted.store_low_bytes(out.as_mut_ptr().cast()) };
        }
        out
    }
    #[inline(always)]
    unsafe fn keep_scale(scale: CodeScale, scales: *mut f32, slot: usize) {
        // SAFETY: the caller's promise; alignment depends on the page's shape.
        unsafe { scales.add(slot).write_unaligned(scale.step) };
    }
}

/// The first `count` values, and zeros.
///
/// # Safety
/// As [`Lanes`] says.
#[inline(always)]
pub(super) unsafe fn load<V: Lanes>(values: &[f32], count: usize) -> V {
    if count == LANES {
        // SAFETY: 16 values, as the slice is checked to have.
        return unsafe { V::load(values[..LANES].as_ptr()) };
    }
    let mut padded = [0.0; LANES];
    padded[..count].copy_from_slice(&values[..count]);
    // SAFETY: 16 values.
    unsafe { V::load(padded.as_ptr()) }
}
