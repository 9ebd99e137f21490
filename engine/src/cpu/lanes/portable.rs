//! Plain Rust. The definition of what the other implementations compute.

use super::{LANES, Lanes, bf16_bits};

/// An array.
#[derive(Clone, Copy)]
pub(crate) struct PortableLanes([f32; LANES]);

/// Value of bf16 bits.
fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

impl PortableLanes {
    /// The lanes' bits.
    #[inline(always)]
    pub(super) fn bits(self) -> [u32; LANES] {
        self.0.map(f32::to_bits)
    }

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
    type Pairs = [[u16; 2]; LANES];
    const WIDE: bool = false;
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
    unsafe fn load_pairs(source: *const u16) -> Self::Pairs {
        // SAFETY: the caller promises 32 values; the read is unaligned.
        unsafe { source.cast::<[[u16; 2]; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat_pair(source: *const u16) -> Self::Pairs {
        // SAFETY: the caller promises two values; the read is unaligned.
        [unsafe { source.cast::<[u16; 2]>().read_unaligned() }; LANES]
    }
    #[inline(always)]
    fn without_seconds(pairs: Self::Pairs) -> Self::Pairs {
        pairs.map(|[first, _]| [first, 0])
    }
    #[inline(always)]
    fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs) -> Self {
        Self(std::array::from_fn(|lane| {
            // Products of bf16 values are exact in f32, so adding them is multiply-adding.
            let product = |at: usize| widen(a[lane][at]) * widen(b[lane][at]);
            self.0[lane] + product(1) + product(0)
        }))
    }
    #[inline(always)]
    fn round_to_pairs(low: Self, high: Self) -> Self::Pairs {
        std::array::from_fn(|pair| {
            let half = if pair < LANES / 2 { low.0 } else { high.0 };
            [0, 1].map(|at| bf16_bits(half[2 * pair % LANES + at]))
        })
    }
    #[inline(always)]
    unsafe fn store_pairs(pairs: Self::Pairs, target: *mut u16) {
        // SAFETY: the caller promises 32 values; the write is unaligned.
        unsafe { target.cast::<Self::Pairs>().write_unaligned(pairs) }
    }
    #[inline(always)]
    fn any_greater(self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| *a > b)
    }
    #[inline(always)]
    fn any_nan(self) -> bool {
        self.0.iter().any(|lane| lane.is_nan())
    }
    #[inline(always)]
    fn without_below(self, limit: f32) -> Self {
        Self(self.0.map(|x| if x.abs() < limit { 0.0 } else { x }))
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
    fn zero_where_less(self, value: Self, limit: Self) -> Self {
        Self::splat(0.0).where_less(value, limit, self)
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
