//! How single values are held in a page: rounded on the way in, exact on the way out.
//!
//! It must not know where in a page a value lies.

use crate::cpu::lanes::{LANES, Lanes};

/// How one value is held in a page.
pub(crate) trait Element: Copy + Default {
    /// Rounds to nearest, ties to even.
    ///
    /// # Safety
    /// As [`Lanes`] says.
    unsafe fn round<V: Lanes>(values: V) -> [Self; LANES];
    /// Exact.
    fn widen(self) -> f32;
}

/// bfloat16 bits as [`bf16_bits`](super::lanes::bf16_bits) makes them.
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
    #[inline(always)]
    unsafe fn round<V: Lanes>(values: V) -> [Self; LANES] {
        let mut out = [Self(0); LANES];
        // SAFETY: 16 values, transparent over their bits.
        unsafe { values.store_bf16(out.as_mut_ptr().cast()) };
        out
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl Element for half::f16 {
    #[inline(always)]
    unsafe fn round<V: Lanes>(values: V) -> [Self; LANES] {
        // SAFETY: the caller's promise.
        unsafe { <f32 as Element>::round(values) }.map(Self::from_f32)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn round<V: Lanes>(values: V) -> [Self; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: 16 values.
        unsafe { values.store(out.as_mut_ptr()) };
        out
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}
