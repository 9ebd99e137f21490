//! Every slot of pages of many shapes, written in every way.

use std::sync::Arc;

use baton_kv_cache::{KvDtype, KvLayout, KvMemory, PageIndex};
use baton_model_file::fixtures::Random;

use super::{Pages, TokenHeads, paired};
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

/// Value (row, column) of a head's K or V as its bits.
fn read(dtype: KvDtype, matrix: *const u8, place: usize) -> u32 {
    // SAFETY: the caller's place is inside the matrix.
    unsafe {
        match dtype {
            KvDtype::Bf16 | KvDtype::F16 => u32::from(matrix.cast::<u16>().add(place).read()),
            KvDtype::F32 => matrix.cast::<u32>().add(place).read(),
        }
    }
}

fn rounded(dtype: KvDtype, value: f32) -> u32 {
    match dtype {
        KvDtype::Bf16 => u32::from(bf16_bits(value)),
        KvDtype::F16 => u32::from(half::f16::from_f32(value).to_bits()),
        KvDtype::F32 => value.to_bits(),
    }
}

#[test]
fn values_lie_in_their_places_whoever_writes_them() {
    println!("seed {SEED:#x}");
    let mut random = Random::new(SEED);
    for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::F32] {
        for (kv_heads, head_dim, page_size) in [
            (3, 64, 16),
            (1, 24, 7),
            (2, 8, 1),
            (1, 128, 32),
            (2, 2, 3),
            (1, 80, 5),
        ] {
            let layout = KvLayout {
                layers: 2,
                kv_heads,
                head_dim,
                page_size,
                dtype,
                pages: 2,
            };
            let width = head_dim as usize;
            let mut heads = || -> Vec<f32> {
                (0..kv_heads as usize * width)
                    .map(|_| (random.below(2_000_001) as f32 - 1e6) * 1.7e-6)
                    .collect()
            };
            let tokens: Vec<_> = (0..page_size).map(|_| (heads(), heads())).collect();
            for &isa in Isa::available() {
                for way in 0..3 {
                    let (pages, _memory) = pages(layout);
                    write(&pages, isa, &tokens, || {
                        way == 2 || way == 1 && random.below(2) == 0
                    });
                    let size = page_size as usize;
                    for (slot, (k, v)) in tokens.iter().enumerate() {
                        for (at, (k, v)) in k.iter().zip(v).enumerate() {
                            let (head, dimension) = (at / width, at % width);
                            let (keys, values) = pages.head(1, PageIndex(1), head);
                            let key = read(dtype, keys, paired(dimension, slot, width, size));
                            let value = read(dtype, values, paired(slot, dimension, size, width));
                            let expected = (rounded(dtype, *k), rounded(dtype, *v));
                            assert_eq!(
                                (key, value),
                                expected,
                                "{isa:?} {layout:?} way {way}, slot {slot}, head {head}, {dimension}"
                            );
                        }
                    }
                }
            }
        }
    }
}
