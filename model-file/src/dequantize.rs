//! Reference dequantisation: plain scalar code that follows the block layouts of ggml
//! (`ggml-common.h`) field by field. It is the oracle of faster kernels and serves small tensors.
//!
//! It must not know about files or speed.

use half::{bf16, f16};

use crate::TensorType;

/// Writes the values of `data` to `out`.
///
/// `data` holds whole blocks of `kind`; `out` has one place per value.
///
/// # Panics
/// If the lengths do not agree.
pub fn dequantize(kind: TensorType, data: &[u8], out: &mut [f32]) {
    let blocks = out.len() / kind.block_size();
    assert_eq!(
        out.len(),
        blocks * kind.block_size(),
        "whole blocks of {kind:?}"
    );
    assert_eq!(
        data.len(),
        blocks * kind.block_bytes(),
        "bytes of {blocks} blocks of {kind:?}"
    );
    let decode: fn(&[u8], &mut [f32]) = match kind {
        TensorType::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        TensorType::F16 => |b, y| y[0] = half_at(b, 0),
        TensorType::BF16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        TensorType::Q8_0 => q8_0,
        TensorType::Q4_0 => q4_0,
        TensorType::Q4_1 => q4_1,
        TensorType::Q5_0 => q5_0,
        TensorType::Q5_1 => q5_1,
        TensorType::Q4_K => q4_k,
        TensorType::Q5_K => q5_k,
        TensorType::Q6_K => q6_k,
    };
    let bytes = data.chunks_exact(kind.block_bytes());
    for (block, values) in bytes.zip(out.chunks_exact_mut(kind.block_size())) {
        decode(block, values);
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// `{ f16 d; i8 qs[32] }`: `d * q`.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, &code) in out.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(code as i8);
    }
}

/// `{ f16 d; u8 qs[16] }`: `d * (q - 8)`; low nibbles are values 0..16, high ones 16..32.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (at, &pair) in block[2..].iter().enumerate() {
        out[at] = d * (f32::from(pair & 15) - 8.0);
        out[at + 16] = d * (f32::from(pair >> 4) - 8.0);
    }
}

/// `{ f16 d; f16 m; u8 qs[16] }`: `d * q + m`.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (at, &pair) in block[4..].iter().enumerate() {
        out[at] = d * f32::from(pair & 15) + m;
        out[at + 16] = d * f32::from(pair >> 4) + m;
    }
}

/// Fifth bits (`qh`, little-endian, bit `i` for value `i`) joined to nibbles (`qs`).
fn five_bits(qh: &[u8], qs: &[u8]) -> [u8; 32] {
    let high = u32::from_le_bytes([qh[0], qh[1], qh[2], qh[3]]);
    let bit = |at: usize| (((high >> at) & 1) as u8) << 4;
    let mut codes = [0; 32];
    for (at, &pair) in qs.iter().enumerate() {
        codes[at] = (pair & 15) | bit(at);
        codes[at + 16] = (pair >> 4) | bit(at + 16);
    }
    codes
}

/// `{ f16 d; u8 qh[4]; u8 qs[16] }`: `d * (q - 16)`.
fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, code) in out.iter_mut().zip(five_bits(&block[2..6], &block[6..])) {
        *value = d * (f32::from(code) - 16.0);
    }
}

/// `{ f16 d; f16 m; u8 qh[4]; u8 qs[16] }`: `d * q + m`.
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (value, code) in out.iter_mut().zip(five_bits(&block[4..8], &block[8..])) {
        *value = d * f32::from(code) + m;
    }
}

/// The 6-bit scale and minimum of sub-block `at` (0..8) in the 12 packed bytes of a K-quant.
#[inline]
pub fn scale_and_minimum(packed: &[u8], at: usize) -> (u8, u8) {
    if at < 4 {
        (packed[at] & 63, packed[at + 4] & 63)
    } else {
        let low = packed[at + 4];
        (
            (low & 15) | ((packed[at - 4] >> 6) << 4),
            (low >> 4) | ((packed[at] >> 6) << 4),
        )
    }
}

/// `{ f16 d; f16 dmin; u8 scales[12]; u8 qs[128] }`: `d * scale * q - dmin * minimum`. Each 32
/// bytes hold two sub-blocks: low nibbles the even one, high nibbles the odd one.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, qs) = (&block[4..16], &block[16..]);
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(scales, sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let shift = 4 * (sub % 2);
        for (value, &pair) in values.iter_mut().zip(&qs[sub / 2 * 32..]) {
            *value = scale * f32::from((pair >> shift) & 15) - minimum;
        }
    }
}

/// As [`q4_k`], with `u8 qh[32]` before `qs`: bit `sub` of byte `i` is the fifth bit of value `i`
/// of sub-block `sub`.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, qh, qs) = (&block[4..16], &block[16..48], &block[48..]);
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(scales, sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let shift = 4 * (sub % 2);
        for (at, value) in values.iter_mut().enumerate() {
            let low = (qs[sub / 2 * 32 + at] >> shift) & 15;
            let code = low | (((qh[at] >> sub) & 1) << 4);
            *value = scale * f32::from(code) - minimum;
        }
    }
}

/// `{ u8 ql[128]; u8 qh[64]; i8 scales[16]; f16 d }`: `d * scale * (q - 32)`. Each half of 128
/// values uses 64 bytes of `ql` (four bits), 32 of `qh` (two bits) and 8 scales of 16 values each.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
    for (at, value) in out.iter_mut().enumerate() {
        let (half, quarter, lane) = (at / 128, at % 128 / 32, at % 32);
        let low = (ql[half * 64 + quarter % 2 * 32 + lane] >> (4 * (quarter / 2))) & 15;
        let high = (qh[half * 32 + lane] >> (2 * quarter)) & 3;
        let code = f32::from(low | (high << 4)) - 32.0;
        *value = d * f32::from(scales[at / 16] as i8) * code;
    }
}
