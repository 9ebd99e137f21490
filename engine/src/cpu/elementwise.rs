//! Kernels over rows: norms and the gate of the MLP. They know nothing of batches.
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
    /// `out = silu(gate) * up` for one vector of each row.
    ///
    /// # Safety
    /// As many vectors may be written, `stride` values apart, from `out` on; the instruction set is
    /// available.
    pub(crate) unsafe fn gate(gate: &[[f32; LANES]], up: &[[f32; LANES]], out: *mut f32, stride: usize)
        = gate_body
}

#[inline(always)]
unsafe fn gate_body<V: Lanes>(
    gate: &[[f32; LANES]],
    up: &[[f32; LANES]],
    out: *mut f32,
    stride: usize,
) {
    let one = V::splat(1.0);
    for (row, (gate, up)) in gate.iter().zip(up).enumerate() {
        // SAFETY: one vector each, by the contract.
        unsafe {
            let value = V::load(gate.as_ptr());
            let silu = value.div(one.add(V::splat(0.0).sub(value).exp()));
            silu.mul(V::load(up.as_ptr())).store(out.add(row * stride));
        }
    }
}
