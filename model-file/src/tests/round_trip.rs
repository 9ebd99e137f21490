//! Models written by the fixtures, read back in both formats.

use crate::fixtures::TinyModel;
use crate::{Architecture, ModelFile, RopePairing, TensorType};

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
