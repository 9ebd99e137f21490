//! From `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` to [`TextMetadata`].
//!
//! It must not know how text is tokenized or rendered.

use serde::Deserialize;
use serde_json::Value;

use super::document::Document;
use super::folder::Folder;
use crate::{FileError, TextMetadata, TokenizerSource};

/// Most templates in the list form of `chat_template`.
const MAX_TEMPLATES: usize = 16;

/// Reads the text files. `chat_template.jinja` wins over the template of `tokenizer_config.json`, and
/// that file's special tokens over the ids of config.json.
pub(super) fn text(
    folder: &mut Folder,
    config: &Document,
    vocabulary: u32,
) -> Result<TextMetadata, FileError> {
    const TOKENIZER: &str = "tokenizer.json";
    let Some(tokenizer) = folder.read(TOKENIZER)? else {
        return Err(FileError::missing(TOKENIZER));
    };
    let outline: Outline = serde_json::from_str(&tokenizer)
        .map_err(|error| FileError::Json(format!("{TOKENIZER}: {error}")))?;
    let tokenizer_config = folder.json("tokenizer_config.json")?;
    let template_file = folder.read("chat_template.jinja")?;
    let special = |name: &str| {
        let Some(document) = &tokenizer_config else {
            return config.token_id(&format!("{name}_id"), vocabulary);
        };
        special_id(document, name, &outline, vocabulary)
    };
    let bos_id = special("bos_token")?;
    let eos_id = special("eos_token")?;
    let stated = match &tokenizer_config {
        Some(document) => document.bool("add_bos_token")?,
        None => None,
    };
    let add_bos = match (stated, bos_id) {
        (Some(true), None) => return Err(FileError::missing("tokenizer_config.json: bos_token")),
        (Some(stated), _) => stated,
        (None, Some(id)) => outline.prepends(id),
        (None, None) => false,
    };
    let chat_template = match (template_file, &tokenizer_config) {
        (Some(template), _) => Some(template),
        (None, Some(document)) => template(document)?,
        (None, None) => None,
    };
    let tokenizer = TokenizerSource::TokenizerJson(tokenizer);
    Ok(TextMetadata {
        tokenizer,
        chat_template,
        bos_id,
        eos_id,
        add_bos,
    })
}

/// The few parts of tokenizer.json that matter here.
#[derive(Deserialize)]
struct Outline {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    post_processor: Option<Value>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

impl Outline {
    fn id(&self, content: &str) -> Option<u32> {
        self.added_tokens
            .iter()
            .find(|token| token.content == content)
            .map(|token| token.id)
    }

    /// Whether the post-processor puts this token before a text.
    fn prepends(&self, id: u32) -> bool {
        let Some(processor) = &self.post_processor else {
            return false;
        };
        let parts = match processor["processors"].as_array() {
            Some(parts) => parts.as_slice(),
            None => std::slice::from_ref(processor),
        };
        parts
            .iter()
            .filter(|part| part["type"] == "TemplateProcessing")
            .filter_map(|part| part["single"][0]["SpecialToken"]["id"].as_str())
            .any(|content| self.id(content) == Some(id))
    }
}

/// The id of a special token: a string, or an object with its `content`.
fn special_id(
    document: &Document,
    name: &str,
    outline: &Outline,
    vocabulary: u32,
) -> Result<Option<u32>, FileError> {
    let content = match document.value(name) {
        None => return Ok(None),
        Some(Value::String(content)) => content,
        Some(Value::Object(token)) => match token.get("content") {
            Some(Value::String(content)) => content,
            _ => return Err(document.wrong(name, "a token with content")),
        },
        Some(_) => return Err(document.wrong(name, "a token")),
    };
    let Some(id) = outline.id(content) else {
        let value = format!("{content:?}, which is no added token of tokenizer.json");
        return Err(document.unsupported(name, value));
    };
    if id >= vocabulary {
        let range = format!("0 to {}", vocabulary - 1);
        return Err(FileError::out_of_range(document.key(name), id, range));
    }
    Ok(Some(id))
}

/// `chat_template`: a string, or a list of named ones of which `default` counts.
fn template(document: &Document) -> Result<Option<String>, FileError> {
    const KEY: &str = "chat_template";
    let expected = "a string or a list of name and template";
    match document.value(KEY) {
        None => Ok(None),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        Some(Value::Array(list)) => {
            if list.len() > MAX_TEMPLATES {
                let range = format!("0 to {MAX_TEMPLATES} templates");
                return Err(FileError::out_of_range(
                    document.key(KEY),
                    list.len(),
                    range,
                ));
            }
            for entry in list {
                match (entry["name"].as_str(), entry["template"].as_str()) {
                    (Some("default"), Some(template)) => return Ok(Some(template.to_owned())),
                    (Some(_), Some(_)) => {}
                    _ => return Err(document.wrong(KEY, expected)),
                }
            }
            Ok(None)
        }
        Some(_) => Err(document.wrong(KEY, expected)),
    }
}
