//! Where the default model is.
#![allow(missing_docs, unreachable_pub, unused_imports)]

use std::path::PathBuf;

/// The default model; a test that needs it fails if it is not there.
pub fn real_model() -> PathBuf {
    let directory = std::env::var_os("BATON_MODEL_DIR").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/baton"),
        PathBuf::from,
    );
    let path = directory.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(
        path.is_file(),
        "{} is missing: `make model` fetches it",
        path.display()
    );
    path
}
