//! Valid models with bytes flipped, cut, copied and overwritten, by seed. The readers must return,
//! whatever they find: a model or a typed error, never a panic, a hang or a large allocation.

use std::path::Path;

use baton_model_file::fixtures::{Random, TinyModel};
use baton_model_file::{ModelFile, TensorType, parse_gguf_header};

use crate::{PEAK_LIMIT_MIB, peak_mib};

const SEED: u64 = 0x5eed;

/// Numbers at which arithmetic breaks.
const EDGES: [u64; 10] = [
    0,
    1,
    31,
    33,
    1 << 16,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    1 << 63,
    u64::MAX,
];

fn model() -> TinyModel {
    TinyModel {
        layers: 1,
        hidden: 32,
        vocabulary: 259,
        intermediate: 32,
        ..TinyModel::default()
    }
    .with_type(TensorType::Q4_0)
}

/// Between one and four changes; most of them in the first `hot` bytes.
fn mutate(bytes: &mut Vec<u8>, hot: usize, random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let range = if random.below(8) > 0 {
            hot.min(bytes.len())
        } else {
            bytes.len()
        };
        let at = random.below(range);
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.bits() as u8,
            2 => bytes.truncate(at),
            3 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let width = [1, 4, 8][random.below(3)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&edge[..width]);
            }
            4 => {
                let length = random.below(64).min(bytes.len() - at);
                let piece = bytes[at..at + length].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            _ => {
                let length = random.below(64).min(bytes.len() - at);
                bytes.drain(at..at + length);
            }
        }
    }
}

/// Reads all there is, as a loader would.
fn use_model(path: &Path) -> bool {
    let Ok(model) = ModelFile::open(path) else {
        return false;
    };
    let names: Vec<String> = model.tensors().map(|info| info.name.clone()).collect();
    for name in names {
        let tensor = model.read_tensor(&name).unwrap();
        assert_eq!(tensor.to_f32().len(), tensor.rows * tensor.columns);
    }
    model.weights_digest().unwrap();
    true
}

#[test]
fn mdl_01_mutated_gguf_headers() {
    println!("seed {SEED:#x}");
    let valid = model().gguf();
    let (bytes, hot) = (valid.bytes(), valid.header_bytes());
    let mut random = Random::new(SEED);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut mutant = bytes.clone();
        mutate(&mut mutant, hot, &mut random);
        accepted += usize::from(parse_gguf_header(&mutant).is_ok());
    }
    // Both outcomes occur, so the mutations are neither too mild nor too wild.
    assert!((100..19_000).contains(&accepted), "{accepted} accepted");
    assert!(peak_mib() < PEAK_LIMIT_MIB, "peak of {} MiB", peak_mib());
}

#[test]
fn mdl_01_mutated_gguf_files() {
    println!("seed {SEED:#x}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mutant.gguf");
    let valid = model().gguf();
    let (bytes, hot) = (valid.bytes(), valid.header_bytes());
    let mut random = Random::new(SEED);
    // The first kilobyte holds the shapes, which the tests above reach too rarely.
    let mut accepted = 0;
    for round in 0..3_000 {
        let mut mutant = bytes.clone();
        mutate(
            &mut mutant,
            if round % 2 == 0 { 1024 } else { hot },
            &mut random,
        );
        std::fs::write(&path, mutant).unwrap();
        accepted += usize::from(use_model(&path));
    }
    assert!((10..2_900).contains(&accepted), "{accepted} accepted");
    assert!(peak_mib() < PEAK_LIMIT_MIB, "peak of {} MiB", peak_mib());
}

#[test]
fn mdl_01_mutated_directories() {
    println!("seed {SEED:#x}");
    let folder = tempfile::tempdir().unwrap();
    let small = TinyModel {
        weights: vec![TensorType::F16],
        ..model()
    };
    let small = TinyModel {
        embedding: TensorType::F16,
        ..small
    };
    small.write_hf_dir(folder.path(), 2).unwrap();
    let mut random = Random::new(SEED);
    let mut accepted = 0;
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
    ] {
        let path = folder.path().join(name);
        let bytes = std::fs::read(&path).unwrap();
        for _ in 0..400 {
            let mut mutant = bytes.clone();
            mutate(&mut mutant, 1024, &mut random);
            std::fs::write(&path, mutant).unwrap();
            accepted += usize::from(use_model(folder.path()));
        }
        std::fs::write(&path, bytes).unwrap();
    }
    assert!((10..2_300).contains(&accepted), "{accepted} accepted");
    assert!(peak_mib() < PEAK_LIMIT_MIB, "peak of {} MiB", peak_mib());
}
