//! The model that router and workers agree on: a tiny file for its tokenizer and digests, and the oracle in
//! place of its weights. It must not know who loads it.

use std::io;
use std::sync::Arc;

use baton_model_file::ModelFile;
use baton_model_file::fixtures::TinyModel;
use baton_proto::domain::{Fingerprint, PROTOCOL_VERSION};
use baton_router::ServedModel;
use baton_text::TextModel;

use crate::oracle::{Oracle, layout};

/// Longest sequence.
const CONTEXT: u32 = 512;

/// The model.
pub struct Model {
    /// As the router serves it.
    pub served: ServedModel,
    /// Its tokenizer.
    pub text: Arc<TextModel>,
    /// What it answers.
    pub oracle: Oracle,
    /// Its name.
    pub name: String,
    metadata_digest: [u8; 32],
    tokenizer_digest: [u8; 32],
}

impl Model {
    /// Writes and reads the file.
    ///
    /// # Errors
    /// The file system refuses, or the reader.
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("tiny.gguf");
        let tiny = TinyModel {
            context_length: CONTEXT,
            layers: 1,
            hidden: 32,
            heads: 1,
            kv_heads: 1,
            head_dim: 32,
            intermediate: 32,
            vocabulary: 320,
            ..TinyModel::default()
        };
        tiny.write_gguf(&path)?;
        let file = ModelFile::open(&path).map_err(io::Error::other)?;
        let config = file.config();
        let text = TextModel::new(file.text(), config).map_err(io::Error::other)?;
        Ok(Self {
            served: ServedModel::new(&file).map_err(io::Error::other)?,
            oracle: Oracle {
                vocabulary: config.vocabulary,
                context: config.context_length,
                eos_ids: config.eos_ids.clone(),
            },
            name: config.name.clone(),
            metadata_digest: file.metadata_digest(),
            tokenizer_digest: text.digest(),
            text: Arc::new(text),
        })
    }

    /// What workers with pages of this size say they are.
    pub fn fingerprint(&self, page_size: u32) -> Fingerprint {
        let layout = layout(page_size, 1);
        Fingerprint {
            protocol_version: PROTOCOL_VERSION,
            weights_digest: [1; 32],
            metadata_digest: self.metadata_digest,
            tokenizer_digest: self.tokenizer_digest,
            kv_dtype: layout.dtype.name().to_owned(),
            page_size,
            layers: layout.layers,
            kv_heads: layout.kv_heads,
            head_dim: layout.head_dim,
            layout: "digests".to_owned(),
            rope: "none".to_owned(),
            numerics: "exact".to_owned(),
        }
    }
}
