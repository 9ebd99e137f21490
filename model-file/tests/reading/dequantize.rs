//! Dequantisation against the Python package `gguf` (0.19): checksums over the same seeded blocks,
//! computed there.

use baton_model_file::fixtures::{Random, quantize};
use baton_model_file::{TensorType, dequantize};

const VALUES: usize = 8192;

/// Blocks of random bytes whose halves are finite.
fn blocks(kind: TensorType) -> Vec<u8> {
    let halves: &[usize] = match kind {
        TensorType::F16
        | TensorType::BF16
        | TensorType::Q8_0
        | TensorType::Q4_0
        | TensorType::Q5_0 => &[0],
        TensorType::Q6_K => &[208],
        TensorType::F32 => panic!("f32 needs no oracle"),
        _ => &[0, 2],
    };
    let count = VALUES / kind.block_size();
    let mut random = Random::new(7);
    let mut bytes = Vec::new();
    while bytes.len() < count * kind.block_bytes() {
        bytes.extend(random.bits().to_le_bytes());
    }
    bytes.truncate(count * kind.block_bytes());
    for block in bytes.chunks_exact_mut(kind.block_bytes()) {
        for half in halves {
            block[half + 1] &= 0xbf;
        }
    }
    bytes
}

fn fnv(values: &[f32]) -> u64 {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[test]
fn every_type_decodes_as_the_reference_does() {
    for (kind, wanted) in [
        (TensorType::Q8_0, 0xc847_2eaa_bd8f_cae3),
        (TensorType::Q4_0, 0x5ada_0ae7_051c_ddf1),
        (TensorType::Q4_1, 0x5d97_445a_8e39_0961),
        (TensorType::Q5_0, 0x85ad_f5cc_bfd9_4166),
        (TensorType::Q5_1, 0x7173_7876_9114_6859),
        (TensorType::Q4_K, 0xe266_5cc3_2957_41d2),
        (TensorType::Q5_K, 0x3beb_bc88_7de5_aace),
        (TensorType::Q6_K, 0xa888_54a3_5484_62e1),
        (TensorType::F16, 0x5f81_e4b4_bff1_9c37),
        (TensorType::BF16, 0x05cc_cee3_c913_4288),
    ] {
        let mut values = vec![0.0; VALUES];
        dequantize(kind, &blocks(kind), &mut values);
        assert_eq!(fnv(&values), wanted, "{kind:?}");
    }
}

#[test]
fn quantised_values_come_back_close() {
    let mut random = Random::new(3);
    let values: Vec<f32> = (0..4096).map(|_| random.unit()).collect();
    for (kind, tolerance) in [
        (TensorType::F32, 0.0),
        (TensorType::F16, 0.0005),
        (TensorType::BF16, 0.004),
        (TensorType::Q8_0, 0.005),
        (TensorType::Q4_0, 0.08),
        (TensorType::Q4_1, 0.07),
        (TensorType::Q5_0, 0.04),
        (TensorType::Q5_1, 0.034),
        (TensorType::Q4_K, 0.09),
        (TensorType::Q5_K, 0.06),
        (TensorType::Q6_K, 0.03),
    ] {
        let bytes = quantize(kind, &values);
        assert_eq!(
            bytes.len(),
            values.len() / kind.block_size() * kind.block_bytes()
        );
        let mut back = vec![0.0; values.len()];
        dequantize(kind, &bytes, &mut back);
        let worst = values
            .iter()
            .zip(&back)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(
            worst <= tolerance,
            "{kind:?}: off by {worst}, allowed {tolerance}"
        );
    }
}
