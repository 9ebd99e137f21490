//! What a model says about text, for the tokenizer and the chat template.
//!
//! It must not know how text is tokenized or rendered.

/// What a tokenizer is built from.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizerSource {
    /// Vocabulary and merges from GGUF metadata.
    Gguf(GgufTokenizer),
    /// A Hugging Face `tokenizer.json`, unparsed.
    TokenizerJson(String),
}

/// `tokenizer.ggml.*` of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`, e.g. `gpt2`.
    pub model: String,
    /// `tokenizer.ggml.pre`, e.g. `smollm`; `None` if the file lacks it, which is not a default.
    pub pre: Option<String>,
    /// Token texts by id; at most [`ModelConfig::vocabulary`](crate::ModelConfig) of them.
    pub tokens: Vec<String>,
    /// Token types by id (1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte). As
    /// many as `tokens`; all 1 if the file states none.
    pub token_types: Vec<i32>,
    /// Merges, best first, each `"left right"`; empty if the file has none.
    pub merges: Vec<String>,
}

/// Everything about text that a model carries. Ids are below the vocabulary size.
#[derive(Debug, Clone, PartialEq)]
pub struct TextMetadata {
    /// Tokenizer data.
    pub tokenizer: TokenizerSource,
    /// Jinja chat template, if the model has one.
    pub chat_template: Option<String>,
    /// Beginning-of-sequence id.
    pub bos_id: Option<u32>,
    /// End-of-sequence id shown to templates.
    pub eos_id: Option<u32>,
    /// Whether BOS is put before raw prompts; then there is a `bos_id`.
    pub add_bos: bool,
}
