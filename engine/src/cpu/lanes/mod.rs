//! Sixteen f32 lanes, the one vector that every floating-point kernel is written over.
//!
//! A kernel is written once, generic over [`Lanes`], and compiled for each instruction set. All
//! implementations do the same IEEE operations in the same order (fused multiply-add where it says
//! so, one fixed tree for sums), so all give the same bits. Kernels' shapes are not its business.
//!
//! A closure would be compiled without the instruction set's features and break the chain of
//! inlining: kernels and implementations keep vectors out of closures.
#![allow(unsafe_code)] // Wraps vector instructions.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod bf16_unit;
mod codes;
mod portable;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2Lanes;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512Lanes;
#[cfg(target_arch = "x86_64")]
pub(crate) use bf16_unit::is_exact as bf16_unit_is_exact;
pub(crate) use codes::CodeLanes;
pub(crate) use portable::PortableLanes;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Magnitudes below this become zero in bf16. So no sum of products of two bf16 values meets a
/// denormal number, which units with bf16 inputs flush and plain arithmetic does not.
pub(crate) const BF16_FLOOR: f32 = f32::from_bits((127 - 50) << 23);

/// The bfloat16 nearest to `value`, ties to even, magnitudes below [`BF16_FLOOR`] as zero. Infinity
/// and not-a-number stay what they are.
#[inline(always)]
pub(crate) fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        // Rounding could carry into infinity; the top bits, made quiet, cannot.
        (bits >> 16) as u16 | 0x40
    } else if value.abs() < BF16_FLOOR {
        0
    } else {
        (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
    }
}

/// A vector of [`LANES`] f32 values.
///
/// # Safety of use
/// Values may exist only in code compiled with the instruction set's target features (or any, for
/// the portable one); [`lanes_kernel`] is the only door. Methods on pointers need what they
/// name.
pub(crate) trait Lanes: CodeLanes {
    /// Sixteen pairs of bf16.
    type Pairs: Copy;
    /// Whether the machine holds 32 of these vectors in registers.
    const WIDE: bool;
    /// All lanes `value`.
    fn splat(value: f32) -> Self;
    /// Sixteen values from memory.
    ///
    /// # Safety
    /// `source` points to 16 readable values; no alignment needed.
    unsafe fn load(source: *const f32) -> Self;
    /// Sixteen values to memory.
    ///
    /// # Safety
    /// `target` points to 16 writable values; no alignment needed.
    unsafe fn store(self, target: *mut f32);
    /// Sixteen pairs of bf16 from memory.
    ///
    /// # Safety
    /// `source` points to 32 readable values; no alignment needed.
    unsafe fn load_pairs(source: *const u16) -> Self::Pairs;
    /// Sixteen values to memory as [`bf16_bits`].
    ///
    /// # Safety
    /// `target` points to 16 writable values; no alignment needed.
    unsafe fn store_bf16(self, target: *mut u16);
    /// Neighbouring lanes 2i and 2i + 1 exchanged.
    fn swap_pairs(self) -> Self;
    /// The two values at `source`, sixteen times.
    ///
    /// # Safety
    /// `source` points to two readable values; no alignment needed.
    unsafe fn splat_pair(source: *const u16) -> Self::Pairs;
    /// Pairs whose second values are zero.
    fn without_seconds(pairs: Self::Pairs) -> Self::Pairs;
    /// `self` plus the product of the pairs' second values, then plus that of their first values,
    /// each rounded once. No value, product or sum may be subnormal: units flush these.
    fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs) -> Self;
    /// The lanes of `low`, then those of `high`, as neighbours of sixteen pairs of bf16, as
    /// [`bf16_bits`]; none may be below [`BF16_FLOOR`] but zero.
    fn round_to_pairs(low: Self, high: Self) -> Self::Pairs;
    /// Sixteen pairs to memory.
    ///
    /// # Safety
    /// `target` points to 32 writable values; no alignment needed.
    unsafe fn store_pairs(pairs: Self::Pairs, target: *mut u16);
    /// Whether some lane is greater than `other`'s; not-a-number is not.
    fn any_greater(self, other: Self) -> bool;
    /// Whether some lane is not a number.
    fn any_nan(self) -> bool;
    /// Lanes of magnitude below `limit` become zero.
    fn without_below(self, limit: f32) -> Self;
    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self * other`.
    fn mul(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn fma(self, factor: Self, addend: Self) -> Self;
    /// `if self > other { self } else { other }`: `other` where a lane is not a number.
    fn max(self, other: Self) -> Self;
    /// `if self < other { self } else { other }`: `other` where a lane is not a number.
    fn min(self, other: Self) -> Self;
    /// Lanes of `self` where `value < limit`, else lanes of `other`.
    fn where_less(self, value: Self, limit: Self, other: Self) -> Self;
    /// Lanes of `self`, but 0 where `value < limit`.
    fn zero_where_less(self, value: Self, limit: Self) -> Self;
    /// Lanes of `self` below `count`, else lanes of `other`.
    fn first(self, count: usize, other: Self) -> Self;
    /// `self * 2^n` by exponent arithmetic, where `shifted` is `n + 1.5 * 2^23` as f32; the result
    /// must be a normal number.
    fn scale_by_power(self, shifted: Self) -> Self;
    /// Sum over the lanes: halves added, then halves of that, and so on.
    fn sum(self) -> f32;
    /// Largest lane, in the same tree.
    fn largest(self) -> f32;

    /// `e^self`, within 2 units in the last place; exactly 0 below -87.33, finite up to 88.3 and
    /// held there above; what arithmetic
    /// gives as not-a-number stays so (one whose low bits a file set may become a number).
    #[inline(always)]
    fn exp(self) -> Self {
        const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer.
        let low = Self::splat(-87.336_54);
        // `min` and `max` return their right operand for not-a-number.
        let x = Self::splat(88.3).min(low.max(self));
        let shifted = x.fma(Self::splat(std::f32::consts::LOG2_E), Self::splat(SHIFT));
        let n = shifted.sub(Self::splat(SHIFT));
        // ln 2 in two parts, the first with few enough bits that n times it is exact.
        let r = n.fma(Self::splat(-0.693_359_4), x);
        let r = n.fma(Self::splat(2.121_944_4e-4), r);
        let mut p = Self::splat(1.987_569_1e-4);
        for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
            p = p.fma(r, Self::splat(coefficient));
        }
        let p = p.fma(r.mul(r), r).add(Self::splat(1.0));
        p.scale_by_power(shifted).zero_where_less(self, low)
    }

    /// `2^self` for lanes of at most 127, within 2 units in the last place; exactly 0 below -49;
    /// not-a-number as [`Self::exp`] has it.
    #[inline(always)]
    fn exp2(self) -> Self {
        const SHIFT: f32 = 12_582_912.0;
        // What comes of lanes below the limit is not used.
        let shifted = self.add(Self::splat(SHIFT));
        let f = self.sub(shifted.sub(Self::splat(SHIFT)));
        // (2^f - 1) / f on -0.5..=0.5 (Cephes, `exp2f`).
        let mut p = Self::splat(1.535_336_2e-4);
        for coefficient in [
            1.339_887_4e-3,
            9.618_437e-3,
            5.550_332_5e-2,
            2.402_264_8e-1,
            std::f32::consts::LN_2,
        ] {
            p = p.fma(f, Self::splat(coefficient));
        }
        let p = p.fma(f, Self::splat(1.0));
        p.scale_by_power(shifted)
            .zero_where_less(self, Self::splat(-49.0))
    }
}

/// Runs `$body` once for each instruction set's vector type and picks by `$isa`.
///
/// `lanes_kernel! { unsafe fn name(args) = body }` defines `unsafe fn name(isa: Isa, args)`, which calls
/// `body::<V>(args)`.
macro_rules! lanes_kernel {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name(isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promise, and the features are enabled here.
                unsafe { $body::<$crate::cpu::lanes::Avx2Lanes>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promise, and the features are enabled here.
                unsafe { $body::<$crate::cpu::lanes::Avx512Lanes<false>>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(
                enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"
            )]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512_bf16($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promise, and the features are enabled here.
                unsafe { $body::<$crate::cpu::lanes::Avx512Lanes<true>>($($arg),*) }
            }
            // SAFETY: the caller's promise; `isa` was checked against the machine at construction.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::Isa::Avx2 | $crate::Isa::Avx2Vnni => avx2($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::Isa::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::Isa::Avx512Bf16 => avx512_bf16($($arg),*),
                    _ => $body::<$crate::cpu::lanes::PortableLanes>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use lanes_kernel;
