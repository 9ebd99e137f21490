//! Declared sizes and structures that no real file has.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use baton_model_file::fixtures::{GgufFile, GgufTensor, GgufValue};
use baton_model_file::{FileError, ModelFile, TensorType, parse_gguf_header};

use crate::{PEAK_LIMIT_MIB, peak_mib};

fn file(entries: Vec<(&str, GgufValue)>, tensors: Vec<GgufTensor>) -> GgufFile {
    let entries = entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    GgufFile { entries, tensors }
}

fn tensor(name: &str, dimensions: &[u64]) -> GgufTensor {
    let kind = TensorType::F32.gguf_id();
    GgufTensor {
        name: name.into(),
        kind,
        dimensions: dimensions.to_vec(),
        data: vec![0; 32],
    }
}

/// Parses `bytes`, which must be refused with `part`, in no time and almost no memory.
fn refused(bytes: &[u8], part: &str) -> FileError {
    let error = quickly(|| parse_gguf_header(bytes).map(drop), part);
    let peak = peak_mib();
    assert!(peak < PEAK_LIMIT_MIB, "{error}: peak of {peak} MiB");
    error
}

/// The error of `read`, which must hold `part` and come within 100 ms; on a busy machine the best
/// of a few tries counts.
fn quickly(read: impl Fn() -> Result<(), FileError>, part: &str) -> FileError {
    const LIMIT: Duration = Duration::from_millis(100);
    const TRIES: usize = 5;
    let mut times = Vec::new();
    for _ in 0..TRIES {
        let start = Instant::now();
        let Err(error) = read() else {
            panic!("accepted, but must be refused with {part:?}")
        };
        times.push(start.elapsed());
        let text = error.to_string();
        assert!(text.contains(part), "{text:?} lacks {part:?}");
        if times.iter().any(|time| *time < LIMIT) {
            return error;
        }
    }
    panic!("{part:?} took {times:?}");
}

fn number(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn array(kind: u32, count: u64, rest: &[u8]) -> GgufValue {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(rest);
    GgufValue::Raw(9, bytes)
}

#[test]
fn mdl_01_hostile_dimensions() {
    parse_gguf_header(&file(vec![], vec![tensor("t", &[8])]).bytes()).unwrap();
    for (dimensions, part) in [
        (vec![0], "dimension of zero"),
        (vec![8, 0], "dimension of zero"),
        (vec![], "0 dimensions"),
        (vec![1; 5], "5 dimensions"),
        (vec![1_u64 << 32; 2], "overflows"),
        (vec![u64::MAX], "overflows"),
        (vec![u64::MAX, u64::MAX], "overflows"),
        (vec![1 << 40], "truncated"),
        (vec![9], "truncated"),
    ] {
        let error = refused(
            &file(vec![], vec![tensor("odd", &dimensions)]).bytes(),
            part,
        );
        assert!(error.to_string().contains("\"odd\""), "{error}");
        assert!(error.to_string().contains("offset"), "{error}");
    }
    let mut bytes = file(vec![], vec![tensor("odd", &[8])]).bytes();
    let at = bytes
        .windows(3)
        .position(|window| window == b"odd")
        .unwrap()
        + 3;
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    refused(&bytes, "4294967295 dimensions");
    let mut blocks = tensor("odd", &[33]);
    blocks.kind = TensorType::Q4_0.gguf_id();
    refused(&file(vec![], vec![blocks]).bytes(), "whole blocks of Q4_0");
}

#[test]
fn mdl_01_hostile_names_and_types() {
    let one = || GgufValue::U32(1);
    refused(
        &file(vec![("", one())], vec![]).bytes(),
        "key at offset 24: is empty",
    );
    refused(
        &file(vec![("a", one()), ("a", one())], vec![]).bytes(),
        "key \"a\" at offset 41: occurs twice",
    );
    let twice = vec![tensor("t", &[8]), tensor("t", &[8])];
    refused(
        &file(vec![], twice).bytes(),
        "tensor \"t\" at offset 57: occurs twice",
    );
    let alias = vec![
        tensor("output.weight", &[8]),
        tensor("lm_head.weight", &[8]),
    ];
    refused(&file(vec![], alias).bytes(), "occurs twice");
    refused(
        &file(vec![], vec![tensor("", &[8])]).bytes(),
        "tensor name at offset 24: is empty",
    );
    let long = "t".repeat(257);
    refused(
        &file(vec![], vec![tensor(&long, &[8])]).bytes(),
        "above the limit of 256",
    );
    for kind in [13, 99, u32::MAX] {
        let value = GgufValue::Raw(kind, vec![0; 16]);
        let part = format!("value type {kind} is unknown");
        refused(&file(vec![("a", value)], vec![]).bytes(), &part);
        refused(
            &file(vec![("a", array(kind, 1, &[0; 16]))], vec![]).bytes(),
            &part,
        );
    }
    refused(
        &file(vec![("a", GgufValue::Raw(7, vec![2]))], vec![]).bytes(),
        "not 0 or 1",
    );
    let mut text = number(1);
    text.push(0xff);
    refused(
        &file(vec![("a", GgufValue::Raw(8, text))], vec![]).bytes(),
        "UTF-8",
    );
    // A thousand arrays, each inside the other.
    let mut nested = Vec::new();
    for _ in 0..1000 {
        nested.extend(9_u32.to_le_bytes());
        nested.extend(1_u64.to_le_bytes());
    }
    refused(
        &file(vec![("a", GgufValue::Raw(9, nested))], vec![]).bytes(),
        "nested arrays",
    );
}

#[test]
fn mdl_03_hostile_lengths() {
    let entry = |value| file(vec![("a", value)], vec![]).bytes();
    for bytes in [
        entry(GgufValue::Raw(8, number(1 << 40))),
        entry(GgufValue::Raw(8, number(u64::MAX))),
        entry(array(0, 1 << 60, &[])),
        entry(array(4, u64::MAX, &[])),
        entry(array(8, 1 << 60, &[])),
        entry(array(12, u64::MAX / 8 + 1, &[])),
    ] {
        assert!(bytes.len() < 160);
        refused(&bytes, "truncated");
    }
    for (at, value) in [(8, 1_u64 << 63), (16, 1 << 63), (8, 65_537), (16, 16_385)] {
        let mut bytes = entry(GgufValue::U32(1));
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        refused(&bytes, &format!("{value}, above the limit"));
    }
    for at in [8, 16] {
        let mut bytes = entry(GgufValue::U32(1));
        bytes[at..at + 8].copy_from_slice(&1000_u64.to_le_bytes());
        refused(&bytes, "truncated");
    }
}

#[test]
fn mdl_03_hostile_alignments() {
    let entry = |value| file(vec![("general.alignment", value)], vec![]).bytes();
    for value in [0, 3, 48, 1 << 17, 1 << 30, u32::MAX] {
        refused(
            &entry(GgufValue::U32(value)),
            &format!("is {value}, outside"),
        );
    }
    for value in [
        GgufValue::I32(32),
        GgufValue::U64(32),
        GgufValue::Str("32".into()),
        GgufValue::I32s(vec![32]),
    ] {
        refused(&entry(value), "\"general.alignment\" must be a uint32");
    }
    for value in [1, 2, 32, 1 << 16] {
        parse_gguf_header(&entry(GgufValue::U32(value))).unwrap();
    }
}

#[test]
fn mdl_03_tensors_must_not_overlap_or_lie_askew() {
    let good = file(vec![], vec![tensor("a", &[8]), tensor("b", &[8])]);
    let bytes = good.bytes();
    parse_gguf_header(&bytes).unwrap();
    let at = good.header_bytes() - 8;
    for (offset, part) in [
        (0_u64, "overlap"),
        (16, "no multiple of the alignment"),
        (64, "truncated"),
        (u64::MAX - 31, "truncated"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        refused(&bytes, part);
    }
}

/// A sparse file of a tebibyte, which leaves room for whatever its header declares.
#[test]
fn mdl_03_hostile_lengths_that_fit_a_huge_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    let entry = |value| file(vec![("a", value)], vec![]).bytes();
    for (bytes, part) in [
        (
            entry(GgufValue::Raw(8, number(1 << 39))),
            "limit of 67108864",
        ),
        (
            entry(GgufValue::Raw(8, number(32 << 20))),
            "limit of 4194304",
        ),
        (entry(array(0, 1 << 39, &[])), "limit of 67108864"),
        (entry(array(0, 1 << 23, &[])), "limit of 4194304"),
        (entry(array(8, (1 << 22) + 1, &[])), "limit of 4194304"),
        (entry(array(8, 1 << 36, &[])), "limit of 67108864"),
    ] {
        let mut out = File::create(&path).unwrap();
        out.write_all(&bytes).unwrap();
        out.set_len(1 << 40).unwrap();
        quickly(|| ModelFile::open(&path).map(drop), part);
        let peak = peak_mib();
        assert!(peak < PEAK_LIMIT_MIB, "{part}: peak of {peak} MiB");
    }
}
