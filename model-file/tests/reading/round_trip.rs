//! Models written by the fixtures, read back in both formats.

use baton_model_file::fixtures::TinyModel;
use baton_model_file::{Architecture, ModelFile, RopePairing, TensorType};

#[test]
fn a_gguf_model_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    for architecture in [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
    ] {
        let model = TinyModel {
            architecture,
            output: Some(TensorType::Q8_0),
            ..TinyModel::default()
        };
        model.write_gguf(&path).unwrap();
        let file = ModelFile::open(&path).unwrap();
        let config = file.config();
        assert_eq!(config.architecture, architecture);
        assert_eq!(
            (config.layers, config.hidden, config.vocabulary),
            (2, 64, 512)
        );
        assert_eq!((config.heads, config.kv_heads, config.head_dim), (4, 2, 16));
        assert!(!config.tied_embeddings);
        assert_eq!(config.eos_ids, [2]);
        let interleaved = config.rope.pairing == RopePairing::Interleaved;
        assert_eq!(interleaved, architecture == Architecture::Llama);
        assert!(file.warnings().is_empty(), "{:?}", file.warnings());
        for weight in model.tensors() {
            let tensor = file.read_tensor(&weight.name).unwrap();
            assert_eq!((tensor.rows, tensor.columns), (weight.rows, weight.columns));
            let permuted = interleaved && weight.name.contains("self_attn.");
            if weight.kind == TensorType::F32 && !permuted {
                assert_eq!(tensor.to_f32(), weight.values, "{}", weight.name);
            }
        }
    }
}

#[test]
fn a_directory_comes_back_in_one_file_or_shards() {
    let model = TinyModel {
        weights: vec![TensorType::F32, TensorType::BF16],
        ..TinyModel::default()
    };
    for shards in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        model.write_hf_dir(folder.path(), shards).unwrap();
        let file = ModelFile::open(folder.path()).unwrap();
        assert_eq!(file.config().eos_ids, [2, 0]);
        assert_eq!(file.config().rope.pairing, RopePairing::HalfSplit);
        assert!(file.config().tied_embeddings);
        assert_eq!(file.text().bos_id, Some(1));
        assert!(file.warnings().is_empty(), "{:?}", file.warnings());
        for weight in model.tensors() {
            let tensor = file.read_tensor(&weight.name).unwrap();
            assert_eq!(tensor.kind, weight.kind);
            if weight.kind == TensorType::F32 {
                assert_eq!(tensor.to_f32(), weight.values, "{}", weight.name);
            }
        }
    }
}

/// The rows of Q and K that the GGUF writer permutes are those of the directory, head by head.
#[test]
fn mdl_07_both_formats_hold_the_same_q_and_k_rows() {
    let model = TinyModel::default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    model.write_gguf(&path).unwrap();
    model
        .write_hf_dir(&folder.path().join("directory"), 1)
        .unwrap();
    let gguf = ModelFile::open(&path).unwrap();
    let directory = ModelFile::open(&folder.path().join("directory")).unwrap();
    let half = model.head_dim as usize / 2;
    for name in ["q_proj", "k_proj"] {
        let name = format!("model.layers.1.self_attn.{name}.weight");
        let columns = model.hidden as usize;
        let interleaved = gguf.read_tensor(&name).unwrap().to_f32();
        let split = directory.read_tensor(&name).unwrap().to_f32();
        assert_ne!(interleaved, split);
        for (head, rows) in interleaved.chunks_exact(2 * half * columns).enumerate() {
            for pair in 0..half {
                for second in 0..2 {
                    let from = (head * 2 * half + pair + second * half) * columns;
                    let to = (2 * pair + second) * columns;
                    assert_eq!(rows[to..to + columns], split[from..from + columns]);
                }
            }
        }
    }
}

#[test]
fn every_tensor_type_comes_back_through_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    for kind in TensorType::ALL {
        let model = TinyModel {
            layers: 1,
            ..TinyModel::for_k_types()
        }
        .with_type(kind);
        model.write_gguf(&path).unwrap();
        let file = ModelFile::open(&path).unwrap();
        for weight in model.tensors() {
            let tensor = file.read_tensor(&weight.name).unwrap();
            assert_eq!(tensor.kind, weight.kind);
            if weight.name.contains("mlp.") || weight.name.contains("embed") {
                let scale = (3.0 / weight.columns as f32).sqrt() * 2.0;
                let pairs = weight.values.iter().zip(tensor.to_f32());
                let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(
                    worst <= 0.1 * scale,
                    "{kind:?} {}: off by {worst}",
                    weight.name
                );
            }
        }
    }
}
