//! Kernels that round K and V of one or two tokens into a piece, head by head.
//!
//! Which tokens share a call is the caller's business and does not show in the bytes.

use baton_kv_cache::PageIndex;

use super::{Bf16, Element, KeyCode, Pages, TokenHeads, ValueCode, element::load};
use crate::cpu::lanes::{LANES, Lanes, lanes_kernel};

/// A kernel for pages whose K and V hold elements of these types.
macro_rules! write_kernel {
    ($name:ident, $body:ident, $key:ty, $value:ty) => {
        lanes_kernel! {
            /// # Safety
            /// As [`Pages::write`], whose checks have been made, for pages of this type.
            pub(super) unsafe fn $name(
                pages: &Pages, layer: u32, page: PageIndex, slot: usize, tokens: &[TokenHeads<'_>],
            ) = $body
        }

        #[inline(always)]
        unsafe fn $body<V: Lanes>(
            pages: &Pages,
            layer: u32,
            page: PageIndex,
            slot: usize,
            tokens: &[TokenHeads<'_>],
        ) {
            // SAFETY: the caller's promise.
            unsafe { write_as::<V, $key, $value>(pages, layer, page, slot, tokens) }
        }
    };
}

write_kernel!(write_bf16, write_bf16_body, Bf16, Bf16);
write_kernel!(write_f16, write_f16_body, half::f16, half::f16);
write_kernel!(write_f32, write_f32_body, f32, f32);
write_kernel!(write_int8, write_int8_body, KeyCode, ValueCode);

/// # Safety
/// As the kernels say; `K` and `E` are the element types.
#[inline(always)]
unsafe fn write_as<V: Lanes, K: Element, E: Element>(
    pages: &Pages,
    layer: u32,
    page: PageIndex,
    slot: usize,
    tokens: &[TokenHeads<'_>],
) {
    let layout = &pages.layout;
    let (size, width) = (layout.page_size as usize, layout.head_dim as usize);
    for head in 0..layout.kv_heads as usize {
        let (keys, values) = pages.head(layer, page, head);
        let part = head * width..(head + 1) * width;
        // SAFETY: slots and lengths have been checked.
        unsafe {
            for (slot, token) in (slot..).zip(tokens) {
                write_key::<V, K>(keys, size, slot, &token.keys[part.clone()]);
            }
            match tokens {
                [first, second] if E::ROWS == 2 => {
                    let both = [&first.values[part.clone()], &second.values[part]];
                    write_values::<V, E>(values, size, slot, both);
                }
                _ => {
                    for (slot, token) in (slot..).zip(tokens) {
                        write_value::<V, E>(values, size, slot, &token.values[part.clone()]);
                    }
                }
            }
        }
    }
}

/// # Safety
/// `keys` is a head's K of a page of `size` tokens; `slot` is one of them, and the caller's.
#[inline(always)]
unsafe fn write_key<V: Lanes, E: Element>(keys: *mut u8, size: usize, slot: usize, key: &[f32]) {
    let width = key.len();
    let elements = keys.cast::<E>();
    // SAFETY: `place` is a bijection onto the matrix, whose rows are dimensions; the scales follow.
    unsafe {
        let scale = E::scale::<V>(key);
        for column in (0..width).step_by(LANES) {
            let count = LANES.min(width - column);
            let rounded = E::round::<V>(load(&key[column..], count), scale);
            let groups = elements.add(E::place(column, slot, width, size));
            let whole = count / E::ROWS;
            spread(
                rounded.as_ptr().cast::<E::Group>(),
                groups.cast(),
                size,
                (whole, LANES / E::ROWS),
            );
            for at in whole * E::ROWS..count {
                let place = E::place(column + at, slot, width, size);
                elements.add(place).write(rounded[at]);
            }
        }
        E::keep_scale(scale, elements.add(size * width).cast(), slot);
    }
}

/// # Safety
/// `values` is a head's V of a page of `size` tokens; `slot` is one of them, and the caller's.
#[inline(always)]
unsafe fn write_value<V: Lanes, E: Element>(
    values: *mut u8,
    size: usize,
    slot: usize,
    value: &[f32],
) {
    let width = value.len();
    let elements = values.cast::<E>();
    // SAFETY: `place` is a bijection onto the matrix, whose rows are tokens; the scales follow.
    unsafe {
        let scale = E::scale::<V>(value);
        let first = E::place(slot, 0, size, width);
        let stride = E::place(slot, 1, size, width) - first;
        for column in (0..width).step_by(LANES) {
            let count = LANES.min(width - column);
            let rounded = E::round::<V>(load(&value[column..], count), scale);
            let place = elements.add(first + column * stride);
            spread(rounded.as_ptr(), place, stride, (count, LANES));
        }
        E::keep_scale(scale, elements.add(size * width).cast(), slot);
    }
}

/// # Safety
/// As [`write_value`], for `slot`, which is even, and the next; rows are interleaved in pairs.
#[inline(always)]
unsafe fn write_values<V: Lanes, E: Element>(
    values: *mut u8,
    size: usize,
    slot: usize,
    [first, second]: [&[f32]; 2],
) {
    let width = first.len();
    let elements = values.cast::<E>();
    // SAFETY: the two rows are neighbours value by value; the scales follow the matrix.
    unsafe {
        let scales = (E::scale::<V>(first), E::scale::<V>(second));
        for column in (0..width).step_by(LANES) {
            let count = LANES.min(width - column);
            let first = E::round::<V>(load(&first[column..], count), scales.0);
            let second = E::round::<V>(load(&second[column..], count), scales.1);
            let both: [[E; 2]; LANES] = std::array::from_fn(|at| [first[at], second[at]]);
            let place = elements.add(E::place(slot, column, size, width));
            std::ptr::copy_nonoverlapping(both.as_ptr(), place.cast::<[E; 2]>(), count);
        }
        let place = elements.add(size * width).cast();
        E::keep_scale(scales.0, place, slot);
        E::keep_scale(scales.1, place, slot + 1);
    }
}

/// Stores `count` of at most `most` values, each `stride` after the one before.
///
/// # Safety
/// The values are there, and all the places are the caller's to write.
#[inline(always)]
unsafe fn spread<T: Copy>(
    values: *const T,
    to: *mut T,
    stride: usize,
    (count, most): (usize, usize),
) {
    // SAFETY: the caller's promise.
    unsafe {
        if count == most {
            // A known number becomes plain stores; a loop would become scatters, which are slower.
            for at in 0..most {
                to.add(at * stride)
                    .write_unaligned(values.add(at).read_unaligned());
            }
        } else {
            for at in 0..count {
                to.add(at * stride)
                    .write_unaligned(values.add(at).read_unaligned());
            }
        }
    }
}
