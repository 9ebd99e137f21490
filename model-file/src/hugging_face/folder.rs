//! The directory of a model and the files in it that may be opened.
//!
//! A name from a file is a single plain component, and what it leads to lies inside the directory:
//! symlinks may point elsewhere in it or, in the cache of the Hugging Face hub, to its `blobs`.
//! It must not know what the files mean.

use std::path::{Path, PathBuf};

use super::document::Document;
use crate::FileError;
use crate::stored::Source;

/// Longest of the small files. Templates and configurations take kilobytes.
const MAX_SMALL_BYTES: u64 = 1 << 20;
/// Longest tokenizer.json; the largest vocabularies take some 35 MB.
pub const MAX_TOKENIZER_JSON_BYTES: u64 = 64 << 20;
/// Longest index of shards; one of 20,000 tensors takes 2 MB.
const MAX_INDEX_BYTES: u64 = 8 << 20;
/// Longest file name.
const MAX_NAME_BYTES: usize = 255;

pub(super) struct Folder {
    path: PathBuf,
    /// Directories that files may lie in, resolved.
    roots: Vec<PathBuf>,
    documents: Vec<(String, Vec<u8>)>,
}

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let root = path.canonicalize()?;
        let mut roots = vec![root.clone()];
        // The hub's cache: models--X/snapshots/REVISION/FILE links to models--X/blobs/DIGEST.
        if let Some(snapshots) = root.parent()
            && snapshots
                .file_name()
                .is_some_and(|name| name == "snapshots")
            && let Some(model) = snapshots.parent()
        {
            roots.push(model.join("blobs"));
        }
        Ok(Self {
            path: path.into(),
            roots,
            documents: Vec::new(),
        })
    }

    /// Whether there is anything by this (fixed, trusted) name.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.path.join(name).symlink_metadata().is_ok()
    }

    /// Opens a file by a name that may come from outside.
    pub(super) fn open_file(&self, name: &str) -> Result<Source, FileError> {
        let outside = || FileError::PathOutside { name: name.into() };
        let plain = !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && !name.starts_with('.')
            && !name.contains(['/', '\\', '\0']);
        if !plain {
            return Err(outside());
        }
        let path = self.path.join(name);
        let resolved = path
            .canonicalize()
            .map_err(|error| FileError::Io(error).at(&path))?;
        if !self.roots.iter().any(|root| resolved.starts_with(root)) {
            return Err(outside());
        }
        // The resolved path, so that what was checked is what is opened.
        let mut source = Source::open(&resolved)?;
        source.path = path;
        Ok(source)
    }

    /// Reads a text file if it is there. Its content becomes part of the digests.
    pub(super) fn read(&mut self, name: &str) -> Result<Option<String>, FileError> {
        if !self.contains(name) {
            return Ok(None);
        }
        let limit = match name {
            "tokenizer.json" => MAX_TOKENIZER_JSON_BYTES,
            "model.safetensors.index.json" => MAX_INDEX_BYTES,
            _ => MAX_SMALL_BYTES,
        };
        let source = self.open_file(name)?;
        let bytes = source.read_all(limit)?;
        let text = std::str::from_utf8(&bytes)
            .map(str::to_owned)
            .map_err(|error| {
                let offset = error.valid_up_to() as u64;
                FileError::Malformed {
                    what: name.into(),
                    offset,
                    problem: "is not UTF-8".into(),
                }
                .at(&source.path)
            })?;
        self.documents.push((name.into(), bytes));
        Ok(Some(text))
    }

    /// Reads and parses a JSON object if it is there.
    pub(super) fn json(&mut self, name: &'static str) -> Result<Option<Document>, FileError> {
        let Some(text) = self.read(name)? else {
            return Ok(None);
        };
        Document::parse(name, &text)
            .map(Some)
            .map_err(|error| error.at(self.path.join(name)))
    }

    pub(super) fn into_documents(self) -> Vec<(String, Vec<u8>)> {
        self.documents
    }
}
