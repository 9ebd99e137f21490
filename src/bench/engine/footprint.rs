//! What the engine takes: time to load, memory that is resident.

use std::fs::File;
use std::path::Path;

/// Loading time and memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Footprint {
    pub(super) load_ms: f64,
    pub(super) resident_bytes: u64,
    /// Pages of the pool, all of them in use.
    pub(super) kv_bytes: u64,
    /// Weights in the file.
    pub(super) file_bytes: u64,
}

impl Footprint {
    /// What is resident besides pages: weights, buffers, the program.
    pub(super) fn besides(&self) -> u64 {
        self.resident_bytes.saturating_sub(self.kv_bytes)
    }

    /// The same as a multiple of the weights in the file.
    pub(super) fn besides_of_file(&self) -> f64 {
        self.besides() as f64 / self.file_bytes.max(1) as f64
    }
}

/// Reads the model's files once, so that loading is timed with a warm file cache. Whoever loads them
/// afterwards tells what is wrong with them.
pub(super) fn warm_file_cache(model: &Path) {
    let read = |path: &Path| {
        if let Ok(mut file) = File::open(path) {
            let _ = std::io::copy(&mut file, &mut std::io::sink());
        }
    };
    let Ok(folder) = std::fs::read_dir(model) else {
        // Not a folder. Pipes and devices are refused when it is opened as a model.
        if model.is_file() {
            read(model);
        }
        return;
    };
    for path in folder.flatten().map(|entry| entry.path()) {
        if path.is_file() {
            read(&path);
        }
    }
}
