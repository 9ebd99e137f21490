//! From GGUF metadata and tensor table to configuration and text metadata.

use baton_model_file::fixtures::{GgufFile, GgufTensor, GgufValue, TinyModel};
use baton_model_file::{
    Architecture, FileError, ModelFile, RopeScaling, TensorType, TokenizerSource,
};

use crate::{open, refused};

fn tiny() -> GgufFile {
    TinyModel::default().gguf()
}

fn with(key: &str, value: GgufValue) -> Result<ModelFile, FileError> {
    open(tiny().set(key, value))
}

fn text(text: &str) -> GgufValue {
    GgufValue::Str(text.into())
}

#[test]
fn mdl_05_tied_and_explicit_output_matrices() {
    let tied = open(&tiny()).unwrap();
    assert!(tied.config().tied_embeddings);
    assert!(tied.tensor_info("lm_head.weight").is_none());

    let model = TinyModel {
        output: Some(TensorType::F16),
        ..TinyModel::default()
    };
    let explicit = open(&model.gguf()).unwrap();
    assert!(!explicit.config().tied_embeddings);
    let output = explicit.tensor_info("lm_head.weight").unwrap();
    assert_eq!((output.kind, output.rows), (TensorType::F16, 512));
}

#[test]
fn mdl_05_everything_missing_is_listed_at_once() {
    let mut file = tiny();
    file.remove("token_embd.weight")
        .remove("blk.1.attn_k.weight");
    let down = file
        .tensors
        .iter_mut()
        .find(|tensor| tensor.name == "blk.0.ffn_down.weight")
        .unwrap();
    *down = GgufTensor::new(
        "blk.0.ffn_down.weight",
        TensorType::F32,
        64,
        64,
        &[0.0; 4096],
    );
    let error = open(&file).unwrap_err();
    let FileError::Incomplete { missing, misshapen } = error.reason() else {
        panic!("{error}");
    };
    assert_eq!(missing, &["token_embd.weight", "blk.1.attn_k.weight"]);
    assert_eq!(misshapen.len(), 1);
    assert_eq!(misshapen[0].name, "blk.0.ffn_down.weight");
    assert_eq!(misshapen[0].found, [64, 64]);
    assert_eq!(misshapen[0].expected, [64, 128]);
    let text = error.to_string();
    for part in [
        "2 tensors missing",
        "token_embd.weight",
        "64x64, must be 64x128",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn mdl_08_frequency_factors_are_applied() {
    let factors: Vec<f32> = (0..8).map(|at| 1.0 + at as f32).collect();
    let model = TinyModel {
        rope_scaling: RopeScaling::Factors(factors),
        ..TinyModel::default()
    };
    let file = open(&model.gguf()).unwrap();
    assert_eq!(file.config().rope.scaling, model.rope_scaling);
    assert!(file.warnings().is_empty());

    let short = TinyModel {
        rope_scaling: RopeScaling::Factors(vec![1.0; 7]),
        ..TinyModel::default()
    };
    refused(open(&short.gguf()), "rope_freqs.weight");
    let long = TinyModel {
        rope_scaling: RopeScaling::Factors(vec![1.0; 5000]),
        ..TinyModel::default()
    };
    refused(open(&long.gguf()), "above the limit of 2048");
    let mut both = model.gguf();
    both.set("llama.rope.scaling.factor", GgufValue::F32(2.0));
    refused(open(&both), "llama.rope.scaling.type");
}

#[test]
fn mdl_08_scalings_are_applied_or_refused_by_name() {
    let linear = TinyModel {
        rope_scaling: RopeScaling::Linear { factor: 2.0 },
        ..TinyModel::default()
    };
    let mut file = linear.gguf();
    assert_eq!(
        open(&file).unwrap().config().rope.scaling,
        linear.rope_scaling
    );
    file.unset("llama.rope.scaling.type");
    assert_eq!(
        open(&file).unwrap().config().rope.scaling,
        linear.rope_scaling
    );
    file.set("llama.rope.scaling.type", text("none"));
    assert_eq!(
        open(&file).unwrap().config().rope.scaling,
        RopeScaling::None
    );

    let yarn = TinyModel {
        rope_scaling: RopeScaling::Yarn {
            factor: 4.0,
            original_context: 2048,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            attention_multiplier: 1.0,
        },
        ..TinyModel::default()
    };
    let mut file = yarn.gguf();
    let opened = open(&file).unwrap();
    assert_eq!(opened.config().rope.scaling, yarn.rope_scaling);
    assert_eq!(opened.config().context_length, 8192);
    file.set("llama.rope.scaling.attn_factor", GgufValue::F32(0.5));
    // The logarithm that this multiplies is the engine's own, the same on every machine.
    assert!(matches!(
        open(&file).unwrap().config().rope.scaling,
        RopeScaling::Yarn {
            attention_factor: None,
            attention_multiplier: 0.5,
            ..
        }
    ));
    file.unset("llama.rope.scaling.factor");
    refused(open(&file), "llama.rope.scaling.factor");

    for kind in ["longrope", "su", "dynamic", "llama3", ""] {
        let message = refused(
            with("llama.rope.scaling.type", text(kind)),
            "llama.rope.scaling.type",
        );
        assert!(message.contains(kind), "{message}");
    }
    refused(
        with("llama.rope.scaling.factor", GgufValue::F32(f32::NAN)),
        "NaN",
    );
}

#[test]
fn mdl_08_missing_and_absurd_values() {
    let unset = |key: &str| open(tiny().unset(key));
    let file = unset("llama.rope.freq_base").unwrap();
    assert_eq!(file.config().rope.theta.to_bits(), 10_000_f32.to_bits());

    let eps = "llama.attention.layer_norm_rms_epsilon";
    for key in [
        eps,
        "llama.context_length",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "general.architecture",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.model",
    ] {
        refused(unset(key), key);
    }
    let u32 = GgufValue::U32;
    let f32 = GgufValue::F32;
    for (key, value, part) in [
        (
            "llama.rope.dimension_count",
            u32(8),
            "8 (the head dimension is 16)",
        ),
        (
            "llama.attention.value_length",
            u32(8),
            "8 (the head dimension is 16)",
        ),
        ("llama.context_length", u32(0), "1 to 16777216"),
        ("llama.context_length", u32(1_000_000_000), "1000000000"),
        ("llama.context_length", GgufValue::I32(-1), "-1"),
        ("llama.block_count", u32(0), "llama.block_count"),
        ("llama.block_count", u32(1025), "1 to 1024"),
        (
            "llama.block_count",
            GgufValue::I32s(vec![2]),
            "must be an integer",
        ),
        (
            "llama.attention.head_count",
            u32(0),
            "llama.attention.head_count",
        ),
        ("llama.attention.head_count_kv", u32(3), "divisors of 4"),
        (
            "llama.attention.head_count_kv",
            u32(0),
            "llama.attention.head_count_kv",
        ),
        (
            "llama.attention.sliding_window",
            u32(1024),
            "llama.attention.sliding_window",
        ),
        ("llama.expert_count", u32(8), "llama.expert_count"),
        ("llama.vocab_size", u32(100), "tokenizer.ggml.tokens"),
        ("llama.vocab_size", u32(u32::MAX), "llama.vocab_size"),
        ("llama.embedding_scale", f32(12.0), "llama.embedding_scale"),
        (
            "llama.attn_logit_softcapping",
            f32(50.0),
            "llama.attn_logit_softcapping",
        ),
        (
            "llama.attention.causal",
            GgufValue::Bool(false),
            "llama.attention.causal",
        ),
        ("llama.rope.freq_base", f32(0.0), "llama.rope.freq_base"),
        (
            "llama.rope.freq_base",
            f32(f32::INFINITY),
            "llama.rope.freq_base",
        ),
        (eps, f32(f32::NAN), eps),
        (eps, f32(0.0), eps),
        ("split.count", GgufValue::Raw(2, vec![3, 0]), "split.count"),
        ("general.type", text("adapter"), "adapter"),
        ("general.architecture", text("gemma2"), "gemma2"),
        ("general.architecture", u32(1), "must be a string"),
        ("tokenizer.ggml.eos_token_id", u32(512), "512"),
        (
            "tokenizer.ggml.bos_token_id",
            u32(512),
            "tokenizer.ggml.bos_token_id",
        ),
        (
            "tokenizer.ggml.token_type",
            GgufValue::I32s(vec![1]),
            "tokenizer.ggml.token_type",
        ),
        ("tokenizer.ggml.tokens", u32(1), "tokenizer.ggml.tokens"),
    ] {
        refused(with(key, value), part);
    }
    // A window that no sequence can outgrow is not in use.
    with("llama.attention.sliding_window", u32(2048)).unwrap();
    with("llama.expert_count", u32(0)).unwrap();
}

#[test]
fn mdl_08_unknown_tensors_warn_and_meaningful_ones_are_refused() {
    let add = |name: &str| {
        let mut file = tiny();
        let tensor = GgufTensor::new(name, TensorType::F32, 1, 64, &[0.0; 64]);
        file.tensors.push(tensor);
        open(&file)
    };
    for name in [
        "blk.0.attn_rot_embd.weight",
        "something.else",
        "blk.9.attn_norm.weight",
    ] {
        let file = add(name).unwrap();
        assert_eq!(file.warnings().len(), 1);
        assert!(file.warnings()[0].contains(name), "{:?}", file.warnings());
    }
    for name in [
        "blk.0.attn_q.bias",
        "blk.1.ffn_down.bias",
        "blk.0.attn_q_norm.weight",
    ] {
        refused(add(name), name);
    }
}

#[test]
fn other_tensor_types_are_refused_by_tensor_name() {
    for (id, spelled) in [
        (10, "Q2_K"),
        (23, "IQ4_XS"),
        (4, "unknown"),
        (u32::MAX, "unknown"),
    ] {
        let mut file = tiny();
        file.tensors[3].kind = id;
        let name = file.tensors[3].name.clone();
        let message = refused(open(&file), &name);
        assert!(message.contains(spelled), "{message}");
    }
}

#[test]
fn names_that_are_unfit_to_print_give_way_to_the_file_name() {
    let name = |value: &str| {
        let file = with("general.name", text(value)).unwrap();
        file.config().name.clone()
    };
    assert_eq!(name("Some Model"), "Some Model");
    for unfit in ["", "a\nb", &"x".repeat(257)] {
        assert_eq!(name(unfit), "tiny");
    }
}

#[test]
fn all_end_of_sequence_ids_count() {
    let mut file = tiny();
    file.set("tokenizer.ggml.eot_token_id", GgufValue::U32(0))
        .set("tokenizer.ggml.eom_token_id", GgufValue::U32(2));
    let file = open(&file).unwrap();
    assert_eq!(file.config().eos_ids, [2, 0]);
    assert_eq!(file.text().eos_id, Some(2));
}

#[test]
fn tok_08_a_missing_pre_tokenizer_stays_missing() {
    let pre = |file: &ModelFile| match &file.text().tokenizer {
        TokenizerSource::Gguf(tokenizer) => tokenizer.pre.clone(),
        TokenizerSource::TokenizerJson(_) => panic!("a GGUF file"),
    };
    let key = "tokenizer.ggml.pre";
    assert_eq!(pre(&open(tiny().unset(key)).unwrap()), None);
    let odd = with(key, text("no-such-pre")).unwrap();
    assert_eq!(pre(&odd).as_deref(), Some("no-such-pre"));
}

#[test]
fn bos_follows_the_flag_then_the_family() {
    let bos = |file: &GgufFile| open(file).map(|file| file.text().add_bos);
    let flag = "tokenizer.ggml.add_bos_token";
    let mut file = tiny();
    assert!(!bos(&file).unwrap());
    file.set(flag, GgufValue::Bool(true));
    assert!(bos(&file).unwrap());
    file.unset(flag);
    assert!(!bos(&file).unwrap());
    file.set("tokenizer.ggml.pre", text("llama-bpe"));
    assert!(bos(&file).unwrap());
    file.unset("tokenizer.ggml.bos_token_id");
    assert!(!bos(&file).unwrap());
    file.set(flag, GgufValue::Bool(true));
    refused(open(&file), "tokenizer.ggml.bos_token_id");
}

#[test]
fn qwen_tensors_are_required_in_their_family() {
    for (architecture, name) in [
        (Architecture::Qwen2, "blk.1.attn_v.bias"),
        (Architecture::Qwen3, "blk.0.attn_k_norm.weight"),
    ] {
        let model = TinyModel {
            architecture,
            ..TinyModel::default()
        };
        refused(open(model.gguf().remove(name)), name);
    }
}

#[test]
fn digests_follow_the_content() {
    let digests = |file: &GgufFile| {
        let file = open(file).unwrap();
        (file.metadata_digest(), file.weights_digest().unwrap())
    };
    let base = digests(&tiny());
    assert_eq!(base, digests(&tiny()));
    // Every tensor counts, and of a large one its beginning, middle and end alone for the quick digest.
    for at in 0..tiny().tensors.len() {
        let mut other_weights = tiny();
        let data = &mut other_weights.tensors[at].data;
        let end = data.len() - 1;
        data[end] ^= 1;
        let other = digests(&other_weights);
        assert_ne!(base.0, other.0);
        assert_ne!(base.1, other.1);
    }
    let mut other_weights = tiny();
    let large = other_weights.tensors.iter_mut();
    let large = large.max_by_key(|tensor| tensor.data.len()).unwrap();
    assert!(large.data.len() > 1536);
    large.data[512] ^= 1;
    let other = digests(&other_weights);
    assert_eq!(base.0, other.0);
    assert_ne!(base.1, other.1);
    let mut other_metadata = tiny();
    other_metadata.set("llama.rope.freq_base", GgufValue::F32(20_000.0));
    let other = digests(&other_metadata);
    assert_ne!(base.0, other.0);
    assert_ne!(base.1, other.1);
}
