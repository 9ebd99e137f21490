//! Kernels over single rows: norms and the gate of the MLP. They know nothing of batches.
//!
//! Rows are padded to whole vectors; padding of inputs to sums is zero.
#![allow(unsafe_code)] // Vector loads and stores on rows whose length is asserted.

use super::lanes::{LANES, Lanes, lanes_kernel};
use crate::Isa;

/// `stream += delta`, then `out = stream / rms(stream) * weight`, where the mean square is over
/// `columns` values; slices are padded to whole vectors, `stream`'s and `delta`'s padding is zero.
pub(crate) fn add_and_norm(
    isa: Isa,
    stream: &mut [f32],
    delta: Option<&[f32]>,
    weight: &[f32],
    columns: usize,
    epsilon: f32,
    out: &mut [f32],
) {
    let padded = columns.next_multiple_of(LANES);
    assert!(stream.len() >= padded && weight.len() >= padded && out.len() >= padded);
    assert!(delta.is_none_or(|delta| delta.len() >= padded));
    let delta = delta.map_or(std::ptr::null(), <[f32]>::as_ptr);
    // SAFETY: all rows hold `padded` values, as asserted.
    unsafe {
        add_and_norm_kernel(
            isa,
            stream.as_mut_ptr(),
            delta,
            weight.as_ptr(),
            columns,
            epsilon,
            out.as_mut_ptr(),
        );
    }
}

/// `out = silu(gate) * up`; all slices are padded to whole vectors (padding is computed too).
pub(crate) fn gate(isa: Isa, gate: &[f32], up: &[f32], columns: usize, out: &mut [f32]) {
    let padded = columns.next_multiple_of(LANES);
    assert!(gate.len() >= padded && up.len() >= padded && out.len() >= padded);
    // SAFETY: all rows hold `padded` values, as asserted.
    unsafe { gate_kernel(isa, gate.as_ptr(), up.as_ptr(), padded, out.as_mut_ptr()) }
}

lanes_kernel! {
    unsafe fn add_and_norm_kernel(
        stream: *mut f32, delta: *const f32, weight: *const f32, columns: usize, epsilon: f32,
        out: *mut f32,
    ) = add_and_norm_body
}

#[inline(always)]
unsafe fn add_and_norm_body<V: Lanes>(
    stream: *mut f32,
    delta: *const f32,
    weight: *const f32,
    columns: usize,
    epsilon: f32,
    out: *mut f32,
) {
    let padded = columns.next_multiple_of(LANES);
    let mut squares = [V::splat(0.0); 4];
    // SAFETY: `column < padded`, which all rows hold.
    unsafe {
        for column in (0..padded).step_by(LANES) {
            let mut value = V::load(stream.add(column));
            if !delta.is_null() {
                value = value.add(V::load(delta.add(column)));
                value.store(stream.add(column));
            }
            let lane = &mut squares[column / LANES % 4];
            *lane = value.fma(value, *lane);
        }
        let [a, b, c, d] = squares;
        let mean = a.add(b).add(c.add(d)).sum() / columns as f32;
        let scale = V::splat(1.0 / (mean + epsilon).sqrt());
        for column in (0..padded).step_by(LANES) {
            let value = V::load(stream.add(column)).mul(scale);
            value
                .mul(V::load(weight.add(column)))
                .store(out.add(column));
        }
    }
}

lanes_kernel! {
    unsafe fn gate_kernel(gate: *const f32, up: *const f32, padded: usize, out: *mut f32) = gate_body
}

#[inline(always)]
unsafe fn gate_body<V: Lanes>(gate: *const f32, up: *const f32, padded: usize, out: *mut f32) {
    let one = V::splat(1.0);
    for column in (0..padded).step_by(LANES) {
        // SAFETY: `column < padded`, which all rows hold.
        unsafe {
            let value = V::load(gate.add(column));
            let silu = value.div(one.add(V::splat(0.0).sub(value).exp()));
            silu.mul(V::load(up.add(column))).store(out.add(column));
        }
    }
}
