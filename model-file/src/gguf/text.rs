//! From GGUF metadata to [`TextMetadata`].
//!
//! It must not know how text is tokenized: an unknown or missing pre-tokenizer is handed on as it
//! stands and refused where it would be used.

use super::GgufHeader;
use super::value::{Metadata, Value, wrong};
use crate::{FileError, GgufTokenizer, TextMetadata, TokenizerSource};

/// Pre-tokenizers whose models want BOS where the file does not say, as in llama.cpp.
const BOS_BY_DEFAULT: [&str; 4] = ["llama3", "llama-v3", "llama-bpe", "falcon3"];

/// Takes the tokenizer out of the header.
pub(crate) fn text(header: &mut GgufHeader, vocabulary: u32) -> Result<TextMetadata, FileError> {
    let metadata = &mut header.metadata;
    let tokenizer = tokenizer(metadata)?;
    let mut ids = [None, None];
    for (id, name) in ids.iter_mut().zip(["bos_token_id", "eos_token_id"]) {
        *id = token_id(metadata, name)?;
        if let Some(id) = id.filter(|&id| id >= vocabulary) {
            let range = format!("0 to {}", vocabulary - 1);
            return Err(FileError::out_of_range(
                format!("tokenizer.ggml.{name}"),
                id,
                range,
            ));
        }
    }
    let [bos_id, eos_id] = ids;
    let by_default = tokenizer.model == "llama"
        || tokenizer
            .pre
            .as_deref()
            .is_some_and(|pre| BOS_BY_DEFAULT.contains(&pre));
    let add_bos = match metadata.bool("tokenizer.ggml.add_bos_token")? {
        Some(true) if bos_id.is_none() => {
            return Err(FileError::missing("tokenizer.ggml.bos_token_id"));
        }
        Some(stated) => stated,
        None => by_default && bos_id.is_some(),
    };
    Ok(TextMetadata {
        chat_template: metadata
            .string("tokenizer.chat_template")?
            .map(str::to_owned),
        tokenizer: TokenizerSource::Gguf(tokenizer),
        bos_id,
        eos_id,
        add_bos,
    })
}

/// The id at `tokenizer.ggml.NAME`.
pub(super) fn token_id(metadata: &Metadata, name: &str) -> Result<Option<u32>, FileError> {
    let key = format!("tokenizer.ggml.{name}");
    let id = metadata.count(&key)?;
    id.map(|id| u32::try_from(id).map_err(|_| FileError::out_of_range(key, id, "32-bit ids")))
        .transpose()
}

fn tokenizer(metadata: &mut Metadata) -> Result<GgufTokenizer, FileError> {
    const MODEL: &str = "tokenizer.ggml.model";
    const TYPES: &str = "tokenizer.ggml.token_type";
    let model = metadata
        .string(MODEL)?
        .ok_or_else(|| FileError::missing(MODEL))?
        .to_owned();
    let pre = metadata.string("tokenizer.ggml.pre")?.map(str::to_owned);
    let tokens = strings(metadata, "tokenizer.ggml.tokens")?
        .ok_or_else(|| FileError::missing("tokenizer.ggml.tokens"))?;
    let merges = strings(metadata, "tokenizer.ggml.merges")?.unwrap_or_default();
    let token_types = match metadata.take(TYPES) {
        None => vec![1; tokens.len()],
        Some(Value::Integers(types)) => types
            .into_iter()
            .map(|kind| {
                i32::try_from(kind)
                    .map_err(|_| FileError::out_of_range(TYPES, kind, "32-bit types"))
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(wrong(TYPES, "an array of integers")),
    };
    if token_types.len() != tokens.len() {
        let range = format!("{} (the number of tokens)", tokens.len());
        return Err(FileError::out_of_range(
            format!("number of {TYPES}"),
            token_types.len(),
            range,
        ));
    }
    Ok(GgufTokenizer {
        model,
        pre,
        tokens,
        token_types,
        merges,
    })
}

fn strings(metadata: &mut Metadata, key: &str) -> Result<Option<Vec<String>>, FileError> {
    match metadata.take(key) {
        None => Ok(None),
        Some(Value::Strings(strings)) => Ok(Some(strings)),
        // An empty array may have any element type.
        Some(Value::Integers(values)) if values.is_empty() => Ok(Some(Vec::new())),
        Some(_) => Err(wrong(key, "an array of strings")),
    }
}
