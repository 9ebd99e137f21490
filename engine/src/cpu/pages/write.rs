//! Kernels that round K and V of one or two tokens into a piece, head by head.
//!
//! Which tokens share a call is the caller's business and does not show in the bytes.

use baton_kv_cache::PageIndex;

use super::{Bf16, Element, Pages, TokenHeads, paired};
use crate::cpu::lanes::{LANES, Lanes, lanes_kernel};

lanes_kernel! {
    pub(super) unsafe fn write_bf16(
        pages: &Pages, layer: u32, page: PageIndex, slot: usize, tokens: &[TokenHeads<'_>],
    ) = write_bf16_body
}
lanes_kernel! {
    pub(super) unsafe fn write_f16(
        pages: &Pages, layer: u32, page: PageIndex, slot: usize, tokens: &[TokenHeads<'_>],
    ) = write_f16_body
}
lanes_kernel! {
    pub(super) unsafe fn write_f32(
        pages: &Pages, layer: u32, page: PageIndex, slot: usize, tokens: &[TokenHeads<'_>],
    ) = write_f32_body
}

#[inline(always)]
unsafe fn write_bf16_body<V: Lanes>(
    pages: &Pages,
    layer: u32,
    page: PageIndex,
    slot: usize,
    tokens: &[TokenHeads<'_>],
) {
    // SAFETY: the caller's promise.
    unsafe { write_as::<V, Bf16>(pages, layer, page, slot, tokens) }
}

#[inline(always)]
unsafe fn write_f16_body<V: Lanes>(
    pages: &Pages,
    layer: u32,
    page: PageIndex,
    slot: usize,
    tokens: &[TokenHeads<'_>],
) {
    // SAFETY: the caller's promise.
    unsafe { write_as::<V, half::f16>(pages, layer, page, slot, tokens) }
}

#[inline(always)]
unsafe fn write_f32_body<V: Lanes>(
    pages: &Pages,
    layer: u32,
    page: PageIndex,
    slot: usize,
    tokens: &[TokenHeads<'_>],
) {
    // SAFETY: the caller's promise.
    unsafe { write_as::<V, f32>(pages, layer, page, slot, tokens) }
}

/// # Safety
/// As [`Pages::write`], whose checks have been made; `E` is the pages' element type.
#[inline(always)]
unsafe fn write_as<V: Lanes, E: Element>(
    pages: &Pages,
    layer: u32,
    page: PageIndex,
    slot: usize,
    tokens: &[TokenHeads<'_>],
) {
    let (kv_heads, width) = (
        pages.layout.kv_heads as usize,
        pages.layout.head_dim as usize,
    );
    let page_size = pages.layout.page_size as usize;
    for head in 0..kv_heads {
        let (keys, values) = pages.head(layer, page, head);
        let (keys, values) = (keys.cast::<E>(), values.cast::<E>());
        for column in (0..width).step_by(LANES) {
            let (from, count) = (head * width + column, LANES.min(width - column));
            // SAFETY: the loads stay inside the token's heads, as `load` is told their number; the
            // stores inside the head's matrices, as `paired` is a bijection onto them.
            unsafe {
                for (at, token) in tokens.iter().enumerate() {
                    let rounded = E::round::<V>(load(&token.keys[from..], count));
                    let place = keys.add(column * page_size + 2 * (slot + at));
                    spread(
                        &pairs(&rounded),
                        place.cast::<[E; 2]>(),
                        page_size,
                        count / 2,
                    );
                }
                let first = E::round::<V>(load(&tokens[0].values[from..], count));
                if let [_, second] = tokens {
                    let second = E::round::<V>(load(&second.values[from..], count));
                    let rows: [[E; 2]; LANES] = std::array::from_fn(|i| [first[i], second[i]]);
                    let place = values.add(slot * width + 2 * column).cast::<[E; 2]>();
                    std::ptr::copy_nonoverlapping(rows.as_ptr(), place, count);
                } else {
                    let place = paired(slot, column, page_size, width);
                    let stride = paired(slot, column + 1, page_size, width) - place;
                    spread(&first, values.add(place), stride, count);
                }
            }
        }
    }
}

/// Neighbours as one.
#[inline(always)]
fn pairs<E: Element>(values: &[E; LANES]) -> [[E; 2]; LANES / 2] {
    std::array::from_fn(|pair| [values[2 * pair], values[2 * pair + 1]])
}

/// Stores the first `count` of `values`, each `stride` after the one before.
///
/// # Safety
/// All these places are the caller's to write.
#[inline(always)]
unsafe fn spread<T: Copy, const N: usize>(
    values: &[T; N],
    to: *mut T,
    stride: usize,
    count: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if count == N {
            // A known number becomes plain stores; a loop would become scatters, which are slower.
            for at in 0..N {
                to.add(at * stride).write(values[at]);
            }
        } else {
            for (at, value) in values[..count].iter().enumerate() {
                to.add(at * stride).write(*value);
            }
        }
    }
}

/// The first `count` values, and zeros.
///
/// # Safety
/// As [`Lanes`] says.
#[inline(always)]
unsafe fn load<V: Lanes>(values: &[f32], count: usize) -> V {
    if count == LANES {
        // SAFETY: 16 values, as the slice is checked to have.
        return unsafe { V::load(values[..LANES].as_ptr()) };
    }
    let mut padded = [0.0; LANES];
    padded[..count].copy_from_slice(&values[..count]);
    // SAFETY: 16 values.
    unsafe { V::load(padded.as_ptr()) }
}
