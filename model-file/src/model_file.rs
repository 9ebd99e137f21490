//! An opened model, whatever its format: configuration, text metadata and tensors on demand.
//!
//! It must not know how weights are packed or executed.

use std::collections::HashMap;
use std::path::Path;

use crate::stored::{Source, Stored};
use crate::{FileError, ModelConfig, Tensor, TensorInfo, TextMetadata, gguf, hugging_face, layout};

/// A model file or directory that has been opened and validated.
///
/// `open` reads metadata only; weights are checked against the file length but not touched. Tensors
/// are read one by one into memory that the caller owns, so that a loader can pack and drop them.
#[derive(Debug)]
pub struct ModelFile {
    config: ModelConfig,
    text: TextMetadata,
    tensors: HashMap<String, Stored>,
    /// Files that hold tensors.
    sources: Vec<Source>,
    /// Metadata files of a directory: name and content.
    documents: Vec<(String, Vec<u8>)>,
    metadata_digest: [u8; 32],
    warnings: Vec<String>,
}

impl ModelFile {
    /// Opens a `.gguf` file or a Hugging Face directory.
    ///
    /// # Errors
    /// A typed error with path, offset or name, value and limit.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let metadata = std::fs::metadata(path).map_err(|error| FileError::Io(error).at(path))?;
        let opened = if metadata.is_dir() {
            hugging_face::open(path).and_then(Self::from_directory)
        } else {
            Self::open_gguf(path)
        };
        opened.map_err(|error| error.at(path))
    }

    /// Shapes and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Tokenizer, template and special ids.
    pub fn text(&self) -> &TextMetadata {
        &self.text
    }

    /// What the file holds beyond the model, one sentence each; for the log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Type and shape of a tensor by canonical (Hugging Face) name, e.g.
    /// `model.layers.3.self_attn.q_proj.weight`, `model.embed_tokens.weight`, `model.norm.weight`,
    /// `lm_head.weight`; `None` if absent.
    ///
    /// All tensors that [`config`](Self::config) implies are present and have the right shape;
    /// `lm_head.weight` is among them unless `tied_embeddings`.
    pub fn tensor_info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|stored| &stored.info)
    }

    /// All tensors, in no particular order, also those that the model does not use.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.values().map(|stored| &stored.info)
    }

    /// Bytes of all tensors together: the whole of a progress bar.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors().map(|info| info.bytes() as u64).sum()
    }

    /// Reads one tensor (canonical name) into memory.
    ///
    /// # Errors
    /// No such tensor, I/O, or a file that changed since `open`.
    pub fn read_tensor(&self, name: &str) -> Result<Tensor, FileError> {
        let stored = self
            .tensors
            .get(name)
            .ok_or_else(|| FileError::NoSuchTensor(name.to_owned()))?;
        self.sources[stored.source].read_tensor(stored)
    }

    /// Digest of the whole file (GGUF) or of config, tokenizer and every shard (directory):
    /// blake3 over length-prefixed, tagged parts. Reads everything once.
    ///
    /// # Errors
    /// I/O, or a file that changed since `open`.
    pub fn weights_digest(&self) -> Result<[u8; 32], FileError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"baton model weights 1");
        for (name, content) in &self.documents {
            part(&mut hasher, name, content.len() as u64);
            hasher.update(content);
        }
        for source in &self.sources {
            // The name of a single file is the operator's choice and says nothing about the model.
            let name = if self.documents.is_empty() {
                "gguf"
            } else {
                source.name()
            };
            part(&mut hasher, name, source.length());
            source.hash(&mut hasher)?;
        }
        Ok(hasher.finalize().into())
    }

    /// Digest of metadata, tokenizer, the tensor table (names, types, shapes, offsets) and a sample of every
    /// tensor, which the router can compute without reading all weights. The fingerprint carries both
    /// digests: workers are paired by the weights', the router compares this one with the workers', so that
    /// it tells fine-tunes of one model apart.
    pub fn metadata_digest(&self) -> [u8; 32] {
        self.metadata_digest
    }

    fn open_gguf(path: &Path) -> Result<Self, FileError> {
        let source = Source::open(path)?;
        let reader = std::io::BufReader::with_capacity(1 << 16, source.reader()?);
        let mut header = gguf::read(reader, source.length())?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"baton model metadata 2");
        part(&mut hasher, "gguf", 32);
        hasher.update(&header.digest());
        let table = header.take_tensors().into_iter();
        let tensors = table
            .map(|stored| (stored.info.name.clone(), stored))
            .collect();
        let rope_factors = rope_factors(&source, &tensors)?;
        let name = path
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into());
        let untied = tensors.contains_key(layout::OUTPUT);
        let config = gguf::config(&header, name, untied, rope_factors)?;
        let text = gguf::text(&mut header, config.vocabulary)?;
        let warnings = layout::check(&config, &tensors, gguf::native)?;
        let sources = vec![source];
        hash_samples(&mut hasher, &sources, &tensors)?;
        Ok(Self {
            config,
            text,
            tensors,
            sources,
            documents: Vec::new(),
            metadata_digest: hasher.finalize().into(),
            warnings,
        })
    }

    fn from_directory(directory: hugging_face::Directory) -> Result<Self, FileError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"baton model metadata 2");
        for (name, content) in &directory.documents {
            part(&mut hasher, name, content.len() as u64);
            hasher.update(content);
        }
        for (source, header) in directory.sources.iter().zip(&directory.headers) {
            part(&mut hasher, source.name(), header.len() as u64);
            hasher.update(header);
        }
        let mut warnings = layout::check(&directory.config, &directory.tensors, str::to_owned)?;
        warnings.extend(directory.warnings);
        hash_samples(&mut hasher, &directory.sources, &directory.tensors)?;
        Ok(Self {
            config: directory.config,
            text: directory.text,
            tensors: directory.tensors,
            sources: directory.sources,
            documents: directory.documents,
            metadata_digest: hasher.finalize().into(),
            warnings,
        })
    }
}

/// The values of `rope_freqs.weight`, which are part of the configuration.
fn rope_factors(
    source: &Source,
    tensors: &HashMap<String, Stored>,
) -> Result<Option<Vec<f32>>, FileError> {
    let Some(stored) = tensors.get(layout::ROPE_FACTORS) else {
        return Ok(None);
    };
    let (value, limit) = (stored.info.bytes() as u64, layout::MAX_ROPE_FACTORS_BYTES);
    if value > limit {
        let what = format!("size of tensor {:?}", stored.native);
        return Err(FileError::Limit {
            what,
            offset: stored.start,
            value,
            limit,
        });
    }
    Ok(Some(source.read_tensor(stored)?.to_f32()))
}

/// Feeds a sample of every tensor to `hasher`, in the order in which they lie.
fn hash_samples(
    hasher: &mut blake3::Hasher,
    sources: &[Source],
    tensors: &HashMap<String, Stored>,
) -> Result<(), FileError> {
    let mut order: Vec<&Stored> = tensors.values().collect();
    order.sort_unstable_by_key(|stored| (stored.source, stored.start));
    part(hasher, "samples", order.len() as u64);
    order
        .into_iter()
        .try_for_each(|stored| sources[stored.source].hash_sample(stored, hasher))
}

/// Opens a part of a digest: tag and length of what follows, so that no two inputs run together.
fn part(hasher: &mut blake3::Hasher, tag: &str, length: u64) {
    hasher.update(&(tag.len() as u64).to_le_bytes());
    hasher.update(tag.as_bytes());
    hasher.update(&length.to_le_bytes());
}
