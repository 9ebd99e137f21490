//! Reading models: what is accepted comes out right, what is not is refused by name.

mod damaged;
mod dequantize;
mod gguf_config;
mod hugging_face;
mod real_model;
mod round_trip;

use std::path::PathBuf;

use baton_model_file::fixtures::GgufFile;
use baton_model_file::{FileError, ModelFile};
use tempfile::TempDir;

/// A directory that holds one GGUF file; it goes when this is dropped.
struct Written {
    _folder: TempDir,
    path: PathBuf,
}

fn write(file: &GgufFile) -> Written {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    Written {
        _folder: folder,
        path,
    }
}

fn open(file: &GgufFile) -> Result<ModelFile, FileError> {
    ModelFile::open(&write(file).path)
}

/// The message of a refusal, which must hold `part`.
fn refused(result: Result<ModelFile, FileError>, part: &str) -> String {
    let text = match result {
        Ok(_) => panic!("accepted, but must be refused with {part:?}"),
        Err(error) => error.to_string(),
    };
    assert!(text.contains(part), "{text:?} lacks {part:?}");
    text
}
