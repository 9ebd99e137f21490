//! Plain Rust. The definition of what the other implementations compute.

use super::{LANES, Lanes, bf16_bits};

/// An array.
#[derive(Clone, Copy)]
pub(crate) struct PortableLanes([f32; LANES]);

impl PortableLanes {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| op(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    fn reduce(self, op: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.0;
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] = op(lanes[lane], lanes[lane + width]);
            }
            width /= 2;
        }
        lanes[0]
    }
}

impl Lanes for PortableLanes {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller promises 16 values; the read is unaligned.
        Self(unsafe { source.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller promises 16 values; the write is unaligned.
        unsafe { target.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(source: *const u16) -> (Self, Self) {
        // SAFETY: the caller promises 32 values; the read is unaligned.
        let pairs = unsafe { source.cast::<[u16; 2 * LANES]>().read_unaligned() };
        let part = |offset| {
            Self(std::array::from_fn(|lane| {
                f32::from_bits(u32::from(pairs[2 * lane + offset]) << 16)
            }))
        };
        (part(0), part(1))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, target: *mut u16) {
        // SAFETY: the caller promises 16 values; the write is unaligned.
        unsafe {
            target
                .cast::<[u16; LANES]>()
                .write_unaligned(self.0.map(bf16_bits));
        }
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane ^ 1]))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            self.0[lane].mul_add(factor.0[lane], addend.0[lane])
        }))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn where_less(self, value: Self, limit: Self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            if value.0[lane] < limit.0[lane] {
                self.0[lane]
            } else {
                other.0[lane]
            }
        }))
    }
    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            if lane < count {
                self.0[lane]
            } else {
                other.0[lane]
            }
        }))
    }
    #[inline(always)]
    fn scale_by_power(self, shifted: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            f32::from_bits(
                self.0[lane]
                    .to_bits()
                    .wrapping_add(shifted.0[lane].to_bits() << 23),
            )
        }))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        self.reduce(|a, b| a + b)
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        self.reduce(|a, b| if a > b { a } else { b })
    }
}
