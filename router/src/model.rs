//! The model as the router knows it: text, shapes and digests, no weights.
//!
//! It must not know workers.

use std::sync::Arc;

use baton_cluster::CheckWorker;
use baton_model_file::ModelFile;
use baton_proto::domain::{Fingerprint, PROTOCOL_VERSION};
use baton_text::{TextError, TextModel};

/// The one model that a router serves.
#[derive(Clone)]
pub struct ServedModel {
    /// Names that clients may use; the first is the one that is listed.
    names: Vec<String>,
    pub(crate) text: Arc<TextModel>,
    pub(crate) vocabulary: u32,
    pub(crate) context_length: u32,
    pub(crate) eos_ids: Vec<u32>,
    metadata_digest: [u8; 32],
    tokenizer_digest: [u8; 32],
}

impl std::fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedModel")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl ServedModel {
    /// Builds the tokenizer; weights are not read.
    ///
    /// # Errors
    /// A tokenizer or template that is not supported.
    pub fn new(file: &ModelFile) -> Result<Self, TextError> {
        let config = file.config();
        let text = Arc::new(TextModel::new(file.text(), config)?);
        Ok(Self {
            names: vec![config.name.clone()],
            tokenizer_digest: text.digest(),
            text,
            vocabulary: config.vocabulary,
            context_length: config.context_length,
            eos_ids: config.eos_ids.clone(),
            metadata_digest: file.metadata_digest(),
        })
    }

    /// Lists the model under this name; the file's own name is still taken.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        self.names.retain(|known| known != name);
        self.names.insert(0, name.to_owned());
        self
    }

    /// The name that is listed.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// Whether clients mean this model. Names are only ever compared.
    pub(crate) fn answers_to(&self, name: &str) -> bool {
        name.is_empty() || self.names.iter().any(|known| known == name)
    }

    /// Tells in which fields a worker does not fit.
    pub fn check_worker(&self) -> CheckWorker {
        let model = self.clone();
        Arc::new(move |info| {
            let differing = model.differing_fields(&info.fingerprint);
            differing.into_iter().map(str::to_owned).collect()
        })
    }

    /// Names of the fields in which a worker's fingerprint contradicts this model.
    pub(crate) fn differing_fields(&self, fingerprint: &Fingerprint) -> Vec<&'static str> {
        [
            (
                "protocol_version",
                fingerprint.protocol_version == PROTOCOL_VERSION,
            ),
            (
                "metadata_digest",
                fingerprint.metadata_digest == self.metadata_digest,
            ),
            (
                "tokenizer_digest",
                fingerprint.tokenizer_digest == self.tokenizer_digest,
            ),
        ]
        .into_iter()
        .filter_map(|(field, same)| (!same).then_some(field))
        .collect()
    }
}
