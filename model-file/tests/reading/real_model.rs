//! The default model's own file.

use std::path::PathBuf;

use baton_model_file::{
    Architecture, ModelFile, RopePairing, RopeScaling, TensorType, TokenizerSource,
};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Where the default model lies; it must be there.
pub(crate) fn path() -> PathBuf {
    let folder = std::env::var_os("BATON_MODEL_DIR").map_or_else(
        || {
            let home = std::env::var_os("HOME").expect("HOME or BATON_MODEL_DIR is set");
            PathBuf::from(home).join(".cache/baton")
        },
        PathBuf::from,
    );
    let path = folder.join(FILE);
    assert!(
        path.is_file(),
        "the default model is missing: {} (`make model` fetches it)",
        path.display()
    );
    path
}

#[test]
fn mdl_05_the_default_model_opens_with_tied_embeddings() {
    let model = ModelFile::open(&path()).unwrap();
    let config = model.config();
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!(
        (config.layers, config.hidden, config.intermediate),
        (30, 576, 1536)
    );
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (9, 3, 64));
    assert_eq!((config.vocabulary, config.context_length), (49_152, 8192));
    assert_eq!(config.rope.pairing, RopePairing::Interleaved);
    assert_eq!(config.rope.scaling, RopeScaling::None);
    assert_eq!(config.rope.theta.to_bits(), 100_000_f32.to_bits());
    assert!(config.tied_embeddings);
    assert_eq!(config.eos_ids, [2]);
    assert!(model.warnings().is_empty(), "{:?}", model.warnings());

    let count = |kind| model.tensors().filter(|info| info.kind == kind).count();
    assert_eq!(model.tensors().len(), 272);
    assert_eq!(count(TensorType::Q4_1), 210);
    assert_eq!(count(TensorType::F32), 61);
    assert_eq!(count(TensorType::Q8_0), 1);
    let embedding = model.tensor_info("model.embed_tokens.weight").unwrap();
    assert_eq!((embedding.kind, embedding.rows), (TensorType::Q8_0, 49_152));

    let text = model.text();
    assert_eq!(
        (text.bos_id, text.eos_id, text.add_bos),
        (Some(1), Some(2), false)
    );
    assert!(
        text.chat_template
            .as_ref()
            .unwrap()
            .contains("<|im_start|>")
    );
    let TokenizerSource::Gguf(tokenizer) = &text.tokenizer else {
        panic!("a GGUF file")
    };
    assert_eq!(tokenizer.pre.as_deref(), Some("smollm"));
    assert_eq!(tokenizer.tokens.len(), 49_152);
    assert_eq!(tokenizer.token_types.len(), 49_152);
    assert_eq!(tokenizer.tokens[2], "<|im_end|>");
    assert_eq!(tokenizer.merges.len(), 48_900);
}

#[test]
fn the_default_model_has_sane_weights_and_digests() {
    let model = ModelFile::open(&path()).unwrap();
    for name in [
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.29.mlp.down_proj.weight",
    ] {
        let values = model.read_tensor(name).unwrap().to_f32();
        let mean_square = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
        assert!(
            mean_square > 1e-4 && mean_square < 1.0,
            "{name}: {mean_square}"
        );
    }
    let digest = model.weights_digest().unwrap();
    assert_eq!(
        digest,
        ModelFile::open(&path()).unwrap().weights_digest().unwrap()
    );
    assert_ne!(digest, model.metadata_digest());
    assert!(model.weight_bytes() > 90_000_000);
}
