//! Every slot of pages of many shapes, written in every way.

use std::sync::Arc;

use baton_kv_cache::{KvDtype, KvLayout, KvMemory, PageIndex};
use baton_model_file::fixtures::Random;

use super::{Bf16, Element, KeyCode, Pages, TokenHeads, ValueCode};
use crate::{
    Isa,
    cpu::{anonymous_memory, lanes::bf16_bits},
};

const SEED: u64 = 0x9a9e;

fn pages(layout: KvLayout) -> (Pages, Arc<dyn KvMemory>) {
    let memory = anonymous_memory(layout.region_bytes()).expect("memory");
    (Pages::new(layout, memory.clone()), memory)
}

/// Writes the tokens into page 1 of layer 1 in runs of one or two.
fn write(
    pages: &Pages,
    isa: Isa,
    tokens: &[(Vec<f32>, Vec<f32>)],
    mut pairs: impl FnMut() -> bool,
) {
    let mut slot = 0;
    while slot < tokens.len() {
        let pair = slot % 2 == 0 && slot + 1 < tokens.len() && pairs();
        let run: Vec<_> = tokens[slot..slot + 1 + usize::from(pair)]
            .iter()
            .map(|(keys, values)| TokenHeads { keys, values })
            .collect();
        // SAFETY: the test's own pages.
        unsafe { pages.write(isa, 1, (PageIndex(1), slot), &run) };
        slot += run.len();
    }
}

/// The bytes at index `at` of a head's K or V, taken as elements of `size` bytes.
fn read(part: *const u8, at: usize, size: usize) -> Vec<u8> {
    // SAFETY: inside the head's part; no step runs.
    unsafe { std::slice::from_raw_parts(part.add(at * size), size) }.to_vec()
}

/// Where value (row, column) lies and as which bytes, and the scale of `head`, of whose values it is.
fn expected(
    dtype: KvDtype,
    is_key: bool,
    value: f32,
    head: &[f32],
    (row, column, rows, columns): (usize, usize, usize, usize),
) -> (usize, Vec<u8>, Vec<u8>) {
    let pair = Bf16::place(row, column, rows, columns);
    match dtype {
        KvDtype::Bf16 => (pair, bf16_bits(value).to_le_bytes().into(), vec![]),
        KvDtype::F16 => {
            let bits = half::f16::from_f32(value).to_bits();
            (pair, bits.to_le_bytes().into(), vec![])
        }
        KvDtype::F32 => (pair, value.to_le_bytes().into(), vec![]),
        KvDtype::Int8 => {
            let largest = head.iter().fold(0.0, |a: f32, x| a.max(x.abs()));
            let code = (f64::from(value) * f64::from(127.0 / largest)).round_ties_even() as i8;
            let scale = (largest / 127.0).to_le_bytes().into();
            if is_key {
                let place = KeyCode::place(row, column, rows, columns);
                (place, vec![code.cast_unsigned() ^ 0x80], scale)
            } else {
                let place = ValueCode::place(row, column, rows, columns);
                (place, vec![code.cast_unsigned()], scale)
            }
        }
    }
}

fn check(pages: &Pages, tokens: &[(Vec<f32>, Vec<f32>)], name: &str) {
    let layout = pages.layout();
    let (width, size) = (layout.head_dim as usize, layout.page_size as usize);
    for (slot, (k, v)) in tokens.iter().enumerate() {
        for (head, (k, v)) in k.chunks(width).zip(v.chunks(width)).enumerate() {
            let (keys, values) = pages.head(1, PageIndex(1), head);
            for dimension in 0..width {
                let key_place = (dimension, slot, width, size);
                let value_place = (slot, dimension, size, width);
                for (is_key, part, numbers, place) in
                    [(true, keys, k, key_place), (false, values, v, value_place)]
                {
                    let (at, bytes, scale) =
                        expected(layout.dtype, is_key, numbers[dimension], numbers, place);
                    let name = format!("{name}, slot {slot}, head {head}, {dimension}");
                    assert_eq!(read(part, at, bytes.len()), bytes, "{name}");
                    if !scale.is_empty() {
                        // SAFETY: scales follow the codes.
                        let scales = unsafe { part.add(size * width) };
                        assert_eq!(read(scales, slot, 4), scale, "{name}");
                    }
                }
            }
        }
    }
}

/// Shapes of heads and pages: whole vectors and none, odd numbers of tokens, lone rows.
const SHAPES: [(u32, u32, u32); 8] = [
    (3, 64, 16),
    (1, 24, 7),
    (2, 8, 1),
    (1, 128, 32),
    (2, 2, 3),
    (1, 80, 5),
    (1, 6, 6),
    (2, 36, 9),
];
const DTYPES: [KvDtype; 4] = [KvDtype::Bf16, KvDtype::F16, KvDtype::F32, KvDtype::Int8];

fn layout(dtype: KvDtype, (kv_heads, head_dim, page_size): (u32, u32, u32)) -> KvLayout {
    KvLayout {
        layers: 2,
        kv_heads,
        head_dim,
        page_size,
        dtype,
        pages: 2,
    }
}

fn random_tokens(layout: &KvLayout, random: &mut Random) -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut heads = || -> Vec<f32> {
        (0..layout.kv_heads * layout.head_dim)
            .map(|_| (random.below(2_000_001) as f32 - 1e6) * 1.7e-6)
            .collect()
    };
    (0..layout.page_size).map(|_| (heads(), heads())).collect()
}

#[test]
fn values_lie_in_their_places_whoever_writes_them() {
    println!("seed {SEED:#x}");
    let mut random = Random::new(SEED);
    for dtype in DTYPES {
        for shape in SHAPES {
            let layout = layout(dtype, shape);
            let tokens = random_tokens(&layout, &mut random);
            for &isa in Isa::available() {
                for way in 0..3 {
                    let (pages, memory) = pages(layout);
                    write(&pages, isa, &tokens, || {
                        way == 2 || way == 1 && random.below(2) == 0
                    });
                    check(&pages, &tokens, &format!("{isa:?} {layout:?} way {way}"));
                    // Nothing else is written.
                    let piece = layout.piece_offset(1, 1);
                    assert_eq!(piece + layout.piece_bytes(), layout.region_bytes());
                    // SAFETY: inside the region; no step runs.
                    let before =
                        unsafe { std::slice::from_raw_parts(memory.base().as_ptr(), piece) };
                    assert!(before.iter().all(|byte| *byte == 0), "{layout:?}");
                }
            }
        }
    }
}

/// Magnitudes too small count as zero, and what is no number stays none, in its own token and head.
#[test]
fn codes_of_nothing_and_of_no_number() {
    let layout = layout(KvDtype::Int8, (2, 24, 5));
    let zero = |scale: f32| scale.to_bits() == 0;
    let largest = |scale: f32| scale.to_bits() == (f32::MAX / 127.0).to_bits();
    for (value, code_is, scale_is) in [
        (0.0, 0, &zero as &dyn Fn(f32) -> bool),
        (1e-30, 0, &zero),
        (f32::MIN_POSITIVE / 2.0, 0, &zero),
        (f32::NAN, 0, &f32::is_nan),
        (f32::INFINITY, 0, &f32::is_nan),
        (f32::MAX, 127, &largest),
    ] {
        for &isa in Isa::available() {
            let (pages, _memory) = pages(layout);
            let mut head = vec![0.0; 48];
            head[7] = value;
            head[30] = 1.0;
            let tokens = vec![(head.clone(), head.clone())];
            write(&pages, isa, &tokens, || false);
            for head in 0..2 {
                let (keys, values) = pages.head(1, PageIndex(1), head);
                for (part, zero) in [(keys, 0x80), (values, 0)] {
                    // SAFETY: scales follow the codes.
                    let scale = read(unsafe { part.add(24 * 5) }, 0, 4);
                    let scale = f32::from_le_bytes(scale.try_into().expect("four bytes"));
                    if head == 1 {
                        assert_eq!(scale.to_bits(), (1.0_f32 / 127.0).to_bits(), "{value}");
                        continue;
                    }
                    assert!(scale_is(scale), "{value} {isa:?}: scale {scale}");
                    let place = if zero == 0 {
                        ValueCode::place(0, 7, 5, 24)
                    } else {
                        KeyCode::place(7, 0, 24, 5)
                    };
                    let code = read(part, place, 1)[0] ^ zero;
                    assert_eq!(code, code_is, "{value}");
                }
            }
        }
    }
}

/// A value comes back within half a step of its head's largest.
#[test]
fn codes_are_within_half_a_step() {
    let mut random = Random::new(SEED + 1);
    let layout = layout(KvDtype::Int8, (2, 64, 16));
    let tokens = random_tokens(&layout, &mut random);
    let (pages, _memory) = pages(layout);
    write(&pages, Isa::detect(), &tokens, || true);
    for (slot, (_, v)) in tokens.iter().enumerate() {
        for (head, v) in v.chunks(64).enumerate() {
            let (_, values) = pages.head(1, PageIndex(1), head);
            // SAFETY: scales follow the codes.
            let scale = read(unsafe { values.add(64 * 16) }, slot, 4);
            let scale = f32::from_le_bytes(scale.try_into().expect("four bytes"));
            for (dimension, value) in v.iter().enumerate() {
                let place = ValueCode::place(slot, dimension, 16, 64);
                let code = read(values, place, 1)[0].cast_signed();
                let error = (f32::from(code) * scale - value).abs();
                assert!(error <= scale * 0.501, "{value}: {error} at scale {scale}");
            }
        }
    }
}
