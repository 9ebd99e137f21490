//! Files that are cut off, replaced, or change while they are open.

use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use baton_model_file::fixtures::TinyModel;
use baton_model_file::{FileError, ModelFile};

use crate::real_model;
use crate::{refused, write};

#[test]
fn mdl_04_truncations_are_refused_each_in_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let original = real_model::path();
    std::fs::copy(&original, &path).unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    let model = ModelFile::open(&original).unwrap();
    let data: u64 = model
        .tensors()
        .map(|info| (info.bytes() as u64).next_multiple_of(32))
        .sum();
    let data_start = length - data;
    let file = File::options().write(true).open(&path).unwrap();
    let mut messages = Vec::new();
    // From the longest to the shortest, so that one copy serves.
    for (cut, part) in [
        (length - 1, "data of tensor"),
        (length / 2, "data of tensor"),
        (data_start + 1, "data of tensor"),
        (data_start - 5_000, "tensor"),
        (1_000_000, "tokenizer.ggml"),
        (30, "metadata"),
        (10, "tensor count"),
        (6, "version"),
        (3, "3 bytes are too short"),
        (0, "empty"),
    ] {
        file.set_len(cut).unwrap();
        let message = refused(ModelFile::open(&path), part);
        assert!(!messages.contains(&message), "cut at {cut}: {message}");
        messages.push(message);
    }
}

#[test]
fn mdl_04_every_cut_of_a_header_is_refused() {
    let model = TinyModel {
        vocabulary: 259,
        layers: 1,
        ..TinyModel::default()
    };
    let bytes = model.gguf().bytes();
    let header = model.gguf().header_bytes();
    baton_model_file::parse_gguf_header(&bytes).unwrap();
    let cuts = (0..header).chain([header + 1, bytes.len() / 2, bytes.len() - 1]);
    for cut in cuts {
        let result = baton_model_file::parse_gguf_header(&bytes[..cut]);
        assert!(
            result.is_err(),
            "cut at {cut} of {} is accepted",
            bytes.len()
        );
    }
}

#[test]
fn mdl_04_other_things_than_models() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.gguf");
    std::fs::write(&page, "<!DOCTYPE html>\n<html><body>404</body></html>").unwrap();
    refused(ModelFile::open(&page), "starts with \"<!DO\"");
    refused(ModelFile::open(folder.path()), "config.json");
    refused(
        ModelFile::open(&folder.path().join("none.gguf")),
        "none.gguf",
    );
    refused(ModelFile::open(Path::new("/dev/zero")), "regular file");
    let header = TinyModel::default().gguf().bytes();
    for (version, part) in [
        (3_u32.to_be_bytes(), "big-endian"),
        (1_u32.to_le_bytes(), "version 1"),
        (4_u32.to_le_bytes(), "version 4"),
    ] {
        let mut bytes = header.clone();
        bytes[4..8].copy_from_slice(&version);
        std::fs::write(&page, bytes).unwrap();
        refused(ModelFile::open(&page), part);
    }
    let mut older = header;
    older[4] = 2;
    std::fs::write(&page, older).unwrap();
    ModelFile::open(&page).unwrap();
}

#[test]
fn mdl_04_a_file_that_shrinks_after_open() {
    let written = write(&TinyModel::default().gguf());
    let model = ModelFile::open(&written.path).unwrap();
    let file = File::options().write(true).open(&written.path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    for name in ["model.norm.weight", "model.embed_tokens.weight"] {
        let error = model.read_tensor(name).unwrap_err();
        assert!(matches!(error.reason(), FileError::Changed(_)), "{error}");
    }
    let error = model.weights_digest().unwrap_err();
    assert!(matches!(error.reason(), FileError::Changed(_)), "{error}");
}

#[test]
fn mdl_04_a_file_that_is_written_to_after_open() {
    let written = write(&TinyModel::default().gguf());
    let model = ModelFile::open(&written.path).unwrap();
    let file = File::options().write(true).open(&written.path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let error = model.read_tensor("model.norm.weight").unwrap_err();
    assert!(matches!(error.reason(), FileError::Changed(_)), "{error}");
}

#[test]
fn a_file_replaced_by_another_keeps_serving_the_old_one() {
    let written = write(&TinyModel::default().gguf());
    let model = ModelFile::open(&written.path).unwrap();
    let before = model.read_tensor("model.norm.weight").unwrap();
    let other = written.path.with_extension("new");
    TinyModel {
        seed: 2,
        ..TinyModel::default()
    }
    .write_gguf(&other)
    .unwrap();
    std::fs::rename(&other, &written.path).unwrap();
    assert_eq!(model.read_tensor("model.norm.weight").unwrap(), before);
}

#[test]
fn an_unknown_tensor_name_is_an_error() {
    let written = write(&TinyModel::default().gguf());
    let model = ModelFile::open(&written.path).unwrap();
    let error = model
        .read_tensor("model.layers.99.mlp.up_proj.weight")
        .unwrap_err();
    assert!(matches!(error, FileError::NoSuchTensor(_)), "{error}");
}
