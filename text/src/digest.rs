//! One digest for everything that decides which ids a text has.
//!
//! Two processes with equal digests tokenize, template and detokenize alike. blake3 over tagged,
//! length-prefixed parts, so that no two different inputs run together.
//! Must not know what is done with it.

use baton_model_file::{GgufTokenizer, TextMetadata, TokenizerSource};

/// Digest of a model's text metadata.
pub(crate) fn digest(text: &TextMetadata) -> [u8; 32] {
    let mut parts = Parts(blake3::Hasher::new());
    parts.add(b"baton-text", b"1");
    match &text.tokenizer {
        TokenizerSource::TokenizerJson(json) => parts.add(b"tokenizer.json", json.as_bytes()),
        TokenizerSource::Gguf(gguf) => add_gguf(&mut parts, gguf),
    }
    parts.option(
        b"chat_template",
        text.chat_template.as_deref().map(str::as_bytes),
    );
    let id = |id: Option<u32>| id.map(u32::to_le_bytes);
    parts.option(b"bos", id(text.bos_id).as_ref().map(<[u8; 4]>::as_slice));
    parts.option(b"eos", id(text.eos_id).as_ref().map(<[u8; 4]>::as_slice));
    parts.add(b"add_bos", &[u8::from(text.add_bos)]);
    parts.0.finalize().into()
}

fn add_gguf(parts: &mut Parts, gguf: &GgufTokenizer) {
    parts.add(b"model", gguf.model.as_bytes());
    parts.option(b"pre", gguf.pre.as_deref().map(str::as_bytes));
    parts.add(b"tokens", &(gguf.tokens.len() as u64).to_le_bytes());
    for token in &gguf.tokens {
        parts.add(b"token", token.as_bytes());
    }
    parts.add(b"types", &(gguf.token_types.len() as u64).to_le_bytes());
    for kind in &gguf.token_types {
        parts.add(b"type", &kind.to_le_bytes());
    }
    parts.add(b"merges", &(gguf.merges.len() as u64).to_le_bytes());
    for merge in &gguf.merges {
        parts.add(b"merge", merge.as_bytes());
    }
}

struct Parts(blake3::Hasher);

impl Parts {
    fn add(&mut self, tag: &[u8], bytes: &[u8]) {
        for piece in [tag, bytes] {
            self.0.update(&(piece.len() as u64).to_le_bytes());
            self.0.update(piece);
        }
    }

    fn option(&mut self, tag: &[u8], bytes: Option<&[u8]>) {
        self.add(tag, &[u8::from(bytes.is_some())]);
        self.add(tag, bytes.unwrap_or_default());
    }
}
