//! Hugging Face directories.

use std::fs;
use std::path::Path;

use baton_model_file::fixtures::{TinyModel, Weight, write_safetensors};
use baton_model_file::{
    Architecture, FileError, ModelFile, RopePairing, RopeScaling, TensorType, TokenizerSource,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::refused;

fn tiny(shards: usize) -> TempDir {
    written(&TinyModel::default(), shards)
}

fn written(model: &TinyModel, shards: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    model.write_hf_dir(folder.path(), shards).unwrap();
    folder
}

/// Changes one JSON file of a directory.
fn edit(folder: &Path, name: &str, change: impl FnOnce(&mut Value)) {
    let path = folder.join(name);
    let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
}

/// Opens a tiny directory after one key of a JSON file has been set.
fn with(name: &str, key: &str, value: Value) -> Result<ModelFile, FileError> {
    let folder = tiny(1);
    edit(folder.path(), name, |json| json[key] = value);
    ModelFile::open(folder.path())
}

#[test]
fn our_files_are_valid_to_the_safetensors_crate() {
    let model = TinyModel {
        weights: vec![TensorType::F32, TensorType::F16, TensorType::BF16],
        ..TinyModel::default()
    };
    let folder = written(&model, 1);
    let file = ModelFile::open(folder.path()).unwrap();
    let bytes = fs::read(folder.path().join("model.safetensors")).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), file.tensors().len());
    for (name, view) in theirs.iter() {
        let ours = file.read_tensor(name).unwrap();
        assert_eq!(format!("{:?}", ours.kind), format!("{:?}", view.dtype()));
        assert_eq!(ours.data, view.data(), "{name}");
    }
}

#[test]
fn families_are_told_by_class_and_others_refused_by_name() {
    for (class, wanted) in [
        ("LlamaForCausalLM", Architecture::Llama),
        ("MistralForCausalLM", Architecture::Llama),
        ("Qwen2ForCausalLM", Architecture::Qwen2),
        ("Qwen3ForCausalLM", Architecture::Qwen3),
    ] {
        let folder = written(
            &TinyModel {
                architecture: wanted,
                ..TinyModel::default()
            },
            1,
        );
        edit(folder.path(), "config.json", |json| {
            json["architectures"] = json!([class]);
        });
        let file = ModelFile::open(folder.path()).unwrap();
        assert_eq!(file.config().architecture, wanted);
        assert_eq!(file.config().rope.pairing, RopePairing::HalfSplit);
    }
    for class in [
        "MixtralForCausalLM",
        "Gemma2ForCausalLM",
        "SmolLM3ForCausalLM",
    ] {
        refused(with("config.json", "architectures", json!([class])), class);
    }
    refused(
        with("config.json", "architectures", Value::Null),
        "architectures",
    );
    refused(
        with("config.json", "architectures", json!([])),
        "architectures",
    );
}

#[test]
fn mdl_08_values_of_config_json() {
    let window = |class: &str, window: Value, switch: Value| {
        let folder = tiny(1);
        edit(folder.path(), "config.json", |json| {
            json["architectures"] = json!([class]);
            json["sliding_window"] = window;
            json["use_sliding_window"] = switch;
        });
        ModelFile::open(folder.path())
    };
    refused(
        window("MistralForCausalLM", json!(1024), Value::Null),
        "sliding_window",
    );
    refused(
        window("Qwen2ForCausalLM", json!(1024), json!(true)),
        "sliding_window",
    );
    window("MistralForCausalLM", Value::Null, Value::Null).unwrap();
    refused(
        window("Qwen2ForCausalLM", json!(1024), json!(false)),
        "q_proj.bias",
    );
    for (key, value, part) in [
        ("max_position_embeddings", json!(0), "1 to 16777216"),
        (
            "max_position_embeddings",
            json!(1_000_000_000),
            "1000000000",
        ),
        ("max_position_embeddings", json!(2048.5), "2048.5"),
        ("max_position_embeddings", Value::Null, "missing"),
        ("rms_norm_eps", Value::Null, "rms_norm_eps"),
        ("rms_norm_eps", json!(-1.0), "rms_norm_eps"),
        ("num_key_value_heads", json!(3), "divisors of 4"),
        ("num_hidden_layers", json!("two"), "must be an integer"),
        ("head_dim", json!(15), "15"),
        ("hidden_act", json!("gelu"), "gelu"),
        ("attention_bias", json!(true), "attention_bias"),
        ("mlp_bias", json!(true), "mlp_bias"),
        ("partial_rotary_factor", json!(0.5), "partial_rotary_factor"),
        (
            "quantization_config",
            json!({ "bits": 4 }),
            "quantization_config",
        ),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            "sliding_attention",
        ),
        ("eos_token_id", json!(512), "eos_token_id"),
        ("eos_token_id", json!("</s>"), "eos_token_id"),
        ("vocab_size", json!(0), "vocab_size"),
        ("vocab_size", json!(500), "512x64, must be 500x64"),
    ] {
        refused(with("config.json", key, value), part);
    }
    let file = with("config.json", "rope_theta", Value::Null).unwrap();
    assert_eq!(file.config().rope.theta.to_bits(), 10_000_f32.to_bits());
}

#[test]
fn mdl_08_scalings_of_config_json() {
    for scaling in [
        RopeScaling::Linear { factor: 2.0 },
        RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 1024,
        },
        RopeScaling::Yarn {
            factor: 4.0,
            original_context: 2048,
            beta_fast: 16.0,
            beta_slow: 2.0,
            attention_factor: Some(1.5),
            attention_multiplier: 1.0,
        },
    ] {
        let model = TinyModel {
            rope_scaling: scaling.clone(),
            ..TinyModel::default()
        };
        let folder = written(&model, 1);
        let file = ModelFile::open(folder.path()).unwrap();
        assert_eq!(file.config().rope.scaling, scaling);
        // The newer spelling means the same.
        edit(folder.path(), "config.json", |json| {
            json["rope_parameters"] = json["rope_scaling"].take();
            json["rope_parameters"]["rope_theta"] = json!(5000.0);
        });
        let newer = ModelFile::open(folder.path()).unwrap();
        assert_eq!(newer.config().rope.scaling, scaling);
        assert_eq!(newer.config().rope.theta.to_bits(), 5000_f32.to_bits());
    }
    for kind in ["dynamic", "longrope", "su", "mrope", "ntk"] {
        for key in ["type", "rope_type"] {
            let value = json!({ key: kind, "factor": 2.0 });
            refused(with("config.json", "rope_scaling", value), kind);
        }
    }
    for (value, part) in [
        (json!({ "factor": 2.0 }), "rope_type"),
        (json!({ "rope_type": "linear" }), "factor"),
        (json!({ "rope_type": "linear", "factor": 0.0 }), "factor"),
        (
            json!({ "rope_type": "llama3", "factor": 8.0 }),
            "low_freq_factor",
        ),
        (json!({ "rope_type": "yarn", "factor": 1e30 }), "factor"),
        (
            json!({ "rope_type": "yarn", "factor": 2.0, "mscale": 1.0 }),
            "mscale",
        ),
        (json!("linear"), "rope_scaling"),
    ] {
        refused(with("config.json", "rope_scaling", value), part);
    }
    let none = with(
        "config.json",
        "rope_scaling",
        json!({ "rope_type": "default" }),
    )
    .unwrap();
    assert_eq!(none.config().rope.scaling, RopeScaling::None);
}

#[test]
fn mdl_05_ties_follow_the_configuration() {
    let untied = TinyModel {
        output: Some(TensorType::F32),
        ..TinyModel::default()
    };
    let folder = written(&untied, 2);
    let file = ModelFile::open(folder.path()).unwrap();
    assert!(!file.config().tied_embeddings);
    assert!(file.tensor_info("lm_head.weight").is_some());
    // transformers ignores the matrix where the configuration ties it; so does Baton, aloud.
    edit(folder.path(), "config.json", |json| {
        json["tie_word_embeddings"] = json!(true);
    });
    let file = ModelFile::open(folder.path()).unwrap();
    assert!(file.config().tied_embeddings && file.tensor_info("lm_head.weight").is_none());
    assert!(file.warnings()[0].contains("lm_head.weight"));

    let missing = with("config.json", "tie_word_embeddings", json!(false));
    refused(missing, "lm_head.weight");
    assert!(
        with("config.json", "tie_word_embeddings", Value::Null)
            .unwrap()
            .config()
            .tied_embeddings
    );
}

#[test]
fn end_of_sequence_ids_come_from_all_files() {
    let ids = |value: Value| {
        with("generation_config.json", "eos_token_id", value)
            .map(|file| file.config().eos_ids.clone())
    };
    assert_eq!(ids(json!([5, 2, 5])).unwrap(), [5, 2]);
    assert_eq!(ids(json!(7)).unwrap(), [7, 2]);
    assert_eq!(ids(Value::Null).unwrap(), [2]);
    assert!(ids(json!([512])).is_err());
    assert!(ids(json!([-1])).is_err());
    assert!(ids(json!(vec![1; 257])).is_err());
    let folder = tiny(1);
    fs::remove_file(folder.path().join("generation_config.json")).unwrap();
    assert_eq!(
        ModelFile::open(folder.path()).unwrap().config().eos_ids,
        [2]
    );
}

#[test]
fn templates_in_all_three_places() {
    const NAME: &str = "tokenizer_config.json";
    let template = |value: Value| {
        with(NAME, "chat_template", value).map(|file| file.text().chat_template.clone())
    };
    assert_eq!(template(json!("one")).unwrap().as_deref(), Some("one"));
    assert_eq!(template(Value::Null).unwrap(), None);
    let list = json!([
        { "name": "tool_use", "template": "tools" },
        { "name": "default", "template": "plain" },
    ]);
    assert_eq!(template(list).unwrap().as_deref(), Some("plain"));
    assert!(template(json!(5)).is_err());
    assert!(template(json!([{ "name": "x" }])).is_err());
    let folder = tiny(1);
    fs::write(folder.path().join("chat_template.jinja"), "file").unwrap();
    let file = ModelFile::open(folder.path()).unwrap();
    assert_eq!(file.text().chat_template.as_deref(), Some("file"));
    assert!(matches!(
        file.text().tokenizer,
        TokenizerSource::TokenizerJson(_)
    ));
}

#[test]
fn bos_comes_from_the_flag_or_the_post_processor() {
    let folder = tiny(1);
    let bos = || {
        let text = ModelFile::open(folder.path()).unwrap().text().clone();
        (text.bos_id, text.add_bos)
    };
    assert_eq!(bos(), (Some(1), false));
    edit(folder.path(), "tokenizer_config.json", |json| {
        json["add_bos_token"] = json!(true);
    });
    assert_eq!(bos(), (Some(1), true));
    edit(folder.path(), "tokenizer_config.json", |json| {
        json["add_bos_token"] = Value::Null;
    });
    assert_eq!(bos(), (Some(1), false));
    edit(folder.path(), "tokenizer.json", |json| {
        let single = json!([
            { "SpecialToken": { "id": "<|im_start|>", "type_id": 0 } },
            { "Sequence": { "id": "A", "type_id": 0 } },
        ]);
        json["post_processor"] = json!({
            "type": "Sequence",
            "processors": [{ "type": "ByteLevel" }, { "type": "TemplateProcessing", "single": single }],
        });
    });
    assert_eq!(bos(), (Some(1), true));
    edit(folder.path(), "tokenizer_config.json", |json| {
        json["bos_token"] = json!({ "content": "<|endoftext|>" });
    });
    assert_eq!(bos(), (Some(0), false));
    fs::remove_file(folder.path().join("tokenizer_config.json")).unwrap();
    assert_eq!(bos(), (Some(1), true));
}

#[test]
fn sec_07_names_that_lead_out_of_the_directory() {
    let long = "x".repeat(300);
    for name in [
        "../../etc/passwd",
        "a/../../b",
        "/etc/passwd",
        "..",
        ".hidden",
        "a\0b",
        "a\\b",
        "",
        long.as_str(),
    ] {
        let folder = tiny(2);
        edit(folder.path(), "model.safetensors.index.json", |json| {
            json["weight_map"]["model.norm.weight"] = json!(name);
        });
        let error = ModelFile::open(folder.path()).unwrap_err();
        assert!(
            matches!(error.reason(), FileError::PathOutside { .. }),
            "{name:?}: {error}"
        );
    }
    // No such file: percent signs mean nothing.
    let folder = tiny(2);
    edit(folder.path(), "model.safetensors.index.json", |json| {
        json["weight_map"]["model.norm.weight"] = json!("%2e%2e%2fx");
    });
    refused(ModelFile::open(folder.path()), "%2e%2e%2fx");
}

#[test]
fn sec_07_symlinks_that_lead_out_of_the_directory() {
    let outside = tiny(1);
    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        let folder = tiny(1);
        fs::remove_file(folder.path().join(name)).unwrap();
        std::os::unix::fs::symlink(outside.path().join(name), folder.path().join(name)).unwrap();
        let error = ModelFile::open(folder.path()).unwrap_err();
        assert!(
            matches!(error.reason(), FileError::PathOutside { .. }),
            "{name}: {error}"
        );
    }
    let folder = tiny(1);
    fs::rename(
        folder.path().join("model.safetensors"),
        folder.path().join("weights"),
    )
    .unwrap();
    std::os::unix::fs::symlink("weights", folder.path().join("model.safetensors")).unwrap();
    ModelFile::open(folder.path()).unwrap();
}

#[test]
fn the_hub_cache_with_its_links_to_blobs_opens() {
    let cache = tempfile::tempdir().unwrap();
    let snapshot = cache.path().join("snapshots/0123abc");
    let blobs = cache.path().join("blobs");
    fs::create_dir_all(&snapshot).unwrap();
    TinyModel::default().write_hf_dir(&blobs, 1).unwrap();
    for entry in fs::read_dir(&blobs).unwrap() {
        let name = entry.unwrap().file_name();
        let target = Path::new("../../blobs").join(&name);
        std::os::unix::fs::symlink(target, snapshot.join(&name)).unwrap();
    }
    ModelFile::open(&snapshot).unwrap();
}

#[test]
fn shards_must_agree_with_their_index() {
    let folder = tiny(2);
    let index = "model.safetensors.index.json";
    edit(folder.path(), index, |json| {
        json["weight_map"]["model.norm.weight"] = json!("model-00001-of-00002.safetensors");
    });
    refused(ModelFile::open(folder.path()), "model.norm.weight");
    let folder = tiny(2);
    edit(folder.path(), index, |json| {
        json["weight_map"]["ghost"] = json!("model-00001-of-00002.safetensors");
    });
    refused(ModelFile::open(folder.path()), "in no shard");
    let folder = tiny(2);
    fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).unwrap();
    refused(
        ModelFile::open(folder.path()),
        "model-00002-of-00002.safetensors",
    );
    let folder = tiny(2);
    let first = folder.path().join("model-00001-of-00002.safetensors");
    fs::copy(
        first,
        folder.path().join("model-00002-of-00002.safetensors"),
    )
    .unwrap();
    refused(ModelFile::open(folder.path()), "two shards");
    let folder = tiny(2);
    edit(folder.path(), index, |json| {
        for shard in 0..300 {
            json["weight_map"][format!("t{shard}")] = json!(format!("s{shard}"));
        }
    });
    refused(ModelFile::open(folder.path()), "limit of 256");
    let folder = tiny(2);
    fs::remove_file(folder.path().join(index)).unwrap();
    refused(ModelFile::open(folder.path()), "neither");
}

#[test]
fn digests_cover_every_file() {
    let digests = |folder: &Path| {
        let file = ModelFile::open(folder).unwrap();
        (file.metadata_digest(), file.weights_digest().unwrap())
    };
    let folder = tiny(2);
    let base = digests(folder.path());
    assert_eq!(base, digests(tiny(2).path()));
    edit(folder.path(), "generation_config.json", |json| {
        json["eos_token_id"] = json!(9);
    });
    let other = digests(folder.path());
    assert_ne!(base.0, other.0);
    assert_ne!(base.1, other.1);
    let shard = tiny(2);
    let path = shard.path().join("model-00002-of-00002.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
    let other = digests(shard.path());
    assert_ne!(base.0, other.0);
    assert_ne!(base.1, other.1);
}

/// Opens a directory whose weights are these bytes.
fn with_weights(bytes: &[u8]) -> Result<ModelFile, FileError> {
    let folder = tiny(1);
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    ModelFile::open(folder.path())
}

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn mdl_03_malformed_safetensors() {
    let entry = |kind: &str, shape: &str, offsets: &str| {
        format!(r#"{{"t":{{"dtype":"{kind}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (bytes, part) in [
        (Vec::new(), "empty"),
        (vec![1, 2, 3], "length of the header"),
        (u64::MAX.to_le_bytes().to_vec(), "above the limit"),
        ((1_u64 << 20).to_le_bytes().to_vec(), "truncated"),
        (safetensors("{", 0), "invalid JSON"),
        (safetensors("[]", 0), "invalid JSON"),
        (safetensors(r#"{"t":5}"#, 0), "tensor \\\"t\\\""),
        (safetensors(&entry("F8_E4M3", "[4]", "[0,4]"), 4), "F8_E4M3"),
        (safetensors(&entry("I64", "[4]", "[0,32]"), 32), "I64"),
        (safetensors(&entry("F32", "[]", "[0,4]"), 4), "dimensions"),
        (
            safetensors(&entry("F32", "[0]", "[0,0]"), 4),
            "none of them 0",
        ),
        (
            safetensors(&entry("F32", "[4]", "[0,8]"), 16),
            "do not hold 16 bytes",
        ),
        (
            safetensors(&entry("F32", "[4]", "[16,0]"), 16),
            "do not hold 16 bytes",
        ),
        (safetensors(&entry("F32", "[4]", "[0,16]"), 15), "truncated"),
        (
            safetensors(&entry("F32", "[-4]", "[0,16]"), 16),
            "invalid JSON",
        ),
        (
            safetensors(&entry("F32", "[4294967296,4294967296,4]", "[0,16]"), 16),
            "overflows",
        ),
        (
            safetensors(
                &entry("F32", "[4]", "[18446744073709551600,18446744073709551615]"),
                16,
            ),
            "do not hold",
        ),
        (
            safetensors(
                r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}"#,
                24,
            ),
            "overlap",
        ),
        (
            safetensors(
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
                8,
            ),
            "occurs twice",
        ),
    ] {
        let message = match with_weights(&bytes) {
            Ok(_) => panic!("accepted, but must be refused with {part:?}"),
            Err(error) => error.to_string(),
        };
        assert!(
            message.contains(&part.replace('\\', "")) || message.contains(part),
            "{message}"
        );
    }
}

#[test]
fn mdl_03_sizes_of_text_files_are_bounded() {
    for name in [
        "config.json",
        "tokenizer.json",
        "generation_config.json",
        "chat_template.jinja",
    ] {
        let folder = tiny(1);
        let file = fs::File::create(folder.path().join(name)).unwrap();
        file.set_len(1 << 40).unwrap();
        refused(ModelFile::open(folder.path()), "above the limit");
    }
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let folder = tiny(1);
        fs::write(folder.path().join(name), "[".repeat(100_000)).unwrap();
        refused(ModelFile::open(folder.path()), "invalid JSON");
        fs::write(folder.path().join(name), [b'"', 0xff, b'"']).unwrap();
        refused(ModelFile::open(folder.path()), "UTF-8");
    }
    let folder = tiny(1);
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    refused(ModelFile::open(folder.path()), "tokenizer.json");
}

#[test]
fn extra_tensors_warn_and_biases_are_refused() {
    let model = TinyModel::default();
    let add = |name: &str| {
        let folder = written(&model, 1);
        let mut tensors = model.tensors();
        tensors.push(Weight {
            name: name.into(),
            kind: TensorType::F32,
            rows: 1,
            columns: 4,
            values: vec![0.0; 4],
        });
        write_safetensors(&folder.path().join("model.safetensors"), &tensors).unwrap();
        ModelFile::open(folder.path())
    };
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    assert!(add(name).unwrap().warnings()[0].contains(name));
    let name = "model.layers.0.self_attn.o_proj.bias";
    refused(add(name), name);
}

#[test]
fn the_head_dimension_is_guessed_only_where_its_class_does() {
    let folder = tiny(1);
    edit(folder.path(), "config.json", |json| {
        json["head_dim"] = Value::Null;
    });
    assert_eq!(
        ModelFile::open(folder.path()).unwrap().config().head_dim,
        16
    );
    let model = TinyModel {
        architecture: Architecture::Qwen3,
        ..TinyModel::default()
    };
    let folder = written(&model, 1);
    edit(folder.path(), "config.json", |json| {
        json["head_dim"] = Value::Null;
    });
    refused(ModelFile::open(folder.path()), "head_dim");
}
