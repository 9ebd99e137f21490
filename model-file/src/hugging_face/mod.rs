//! Hugging Face directories: configuration, tokenizer files and safetensors, single or in shards.
//!
//! Only files named here or in the index are opened, and only inside the directory. It must not
//! know GGUF or how weights are packed for execution.

mod config;
mod document;
mod folder;
mod rope;
mod safetensors;
mod text;

pub use folder::MAX_TOKENIZER_JSON_BYTES;

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use crate::stored::{Source, Stored};
use crate::{FileError, ModelConfig, TextMetadata, layout};
use document::Document;
use folder::Folder;

/// Most shards: every one stays open. The largest dense models have about 190.
const MAX_SHARDS: usize = 256;

/// An opened directory.
pub(crate) struct Directory {
    pub(crate) config: ModelConfig,
    pub(crate) text: TextMetadata,
    pub(crate) tensors: HashMap<String, Stored>,
    pub(crate) sources: Vec<Source>,
    /// Header of each source.
    pub(crate) headers: Vec<Vec<u8>>,
    /// Metadata files that were read: name and content.
    pub(crate) documents: Vec<(String, Vec<u8>)>,
    pub(crate) warnings: Vec<String>,
}

/// Opens the model in `path`.
pub(crate) fn open(path: &Path) -> Result<Directory, FileError> {
    let mut folder = Folder::open(path)?;
    let Some(config_json) = folder.json("config.json")? else {
        return Err(FileError::NotAModel(
            "the directory has no config.json".into(),
        ));
    };
    let generation = folder.json("generation_config.json")?;
    let mut weights = weights(&mut folder)?;
    let stem = path
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into());
    let has_output = weights.tensors.contains_key(layout::OUTPUT);
    let mut config = config::config(&config_json, stem, has_output)?;
    let text = text::text(&mut folder, &config_json, config.vocabulary)?;
    config.eos_ids = config::eos_ids(&config_json, generation.as_ref(), text.eos_id, &config)?;
    if config.tied_embeddings && has_output {
        // As in transformers, the configuration decides.
        weights.tensors.remove(layout::OUTPUT);
        weights.warnings.push(format!(
            "tensor {:?} is not used: config.json ties it to the embedding",
            layout::OUTPUT
        ));
    }
    Ok(Directory {
        config,
        text,
        tensors: weights.tensors,
        sources: weights.sources,
        headers: weights.headers,
        documents: folder.into_documents(),
        warnings: weights.warnings,
    })
}

#[derive(Default)]
struct Weights {
    tensors: HashMap<String, Stored>,
    sources: Vec<Source>,
    headers: Vec<Vec<u8>>,
    warnings: Vec<String>,
}

fn weights(folder: &mut Folder) -> Result<Weights, FileError> {
    const SINGLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    let mut weights = Weights::default();
    if folder.contains(SINGLE) {
        weights.add(folder.open_file(SINGLE)?)?;
        return Ok(weights);
    }
    let Some(index) = folder.json(INDEX)? else {
        let text = format!("the directory has neither {SINGLE} nor {INDEX}");
        return Err(FileError::NotAModel(text));
    };
    let map = shard_map(&index)?;
    let mut shards: Vec<&str> = map.iter().map(|(_, shard)| *shard).collect();
    shards.sort_unstable();
    shards.dedup();
    if shards.len() > MAX_SHARDS {
        let (value, limit) = (shards.len() as u64, MAX_SHARDS as u64);
        let what = format!("number of shards in {INDEX}");
        return Err(FileError::Limit {
            what,
            offset: 0,
            value,
            limit,
        });
    }
    for shard in &shards {
        weights.add(folder.open_file(shard)?)?;
    }
    for (name, shard) in map {
        let found = weights
            .tensors
            .get(name)
            .map(|stored| shards[stored.source]);
        if found != Some(shard) {
            let place = found.map_or_else(|| "in no shard".into(), |found| format!("in {found:?}"));
            return Err(FileError::Malformed {
                what: format!("tensor {name:?} of {INDEX}"),
                offset: 0,
                problem: format!("is {place}, not in {shard:?}"),
            });
        }
    }
    Ok(weights)
}

/// Tensor and shard of every entry of the index.
fn shard_map(index: &Document) -> Result<Vec<(&str, &str)>, FileError> {
    let map = index
        .value("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| index.wrong("weight_map", "an object of tensor and file names"))?;
    map.iter()
        .map(|(name, shard)| {
            let shard = shard
                .as_str()
                .ok_or_else(|| index.wrong(name, "the name of a file"))?;
            Ok((name.as_str(), shard))
        })
        .collect()
}

impl Weights {
    fn add(&mut self, source: Source) -> Result<(), FileError> {
        let (header, tensors) = safetensors::read(&source, self.sources.len())
            .map_err(|error| error.at(&source.path))?;
        for stored in tensors {
            let name = stored.info.name.clone();
            if let Some(other) = self.tensors.insert(name, stored) {
                return Err(FileError::Malformed {
                    what: format!("tensor {:?}", other.native),
                    offset: other.start,
                    problem: "is in two shards".into(),
                }
                .at(&source.path));
            }
        }
        self.sources.push(source);
        self.headers.push(header);
        Ok(())
    }
}
