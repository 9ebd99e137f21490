//! Log-probabilities in the two forms that clients know. It must not know whose they are.

use std::fmt::Write as _;

use baton_proto::v1;
use baton_text::TextModel;

use super::replies::{Alternative, ChatLogprobs, ChatToken, TextLogprobs};

/// A token as both forms need it.
#[derive(Debug, Clone)]
pub(super) struct Token {
    name: String,
    bytes: Vec<u8>,
    /// None for the first token of a prompt.
    logprob: Option<f32>,
    top: Vec<Alternative>,
    /// Characters that it adds to the text.
    length: u32,
}

impl Token {
    /// A token with what was told about its place.
    pub(super) fn new(id: u32, told: Option<v1::TokenLogprobs>, text: &TextModel) -> Self {
        let bytes = text.token_bytes(id).unwrap_or_default();
        let length = if text.is_special(id) {
            0
        } else {
            // Every character is counted where it begins.
            bytes.iter().filter(|byte| (**byte as i8) >= -0x40).count()
        };
        let logprob = told.as_ref().map(|told| told.chosen);
        let top = told.map(|told| told.top).unwrap_or_default();
        Self {
            name: name(&bytes),
            bytes,
            logprob,
            top: top.into_iter().map(alternative).collect(),
            length: length as u32,
        }
    }

    fn size(&self) -> usize {
        let one = |name: &String, bytes: &Vec<u8>| name.capacity() + bytes.capacity();
        let top = self.top.iter();
        let top = top.map(|top| size_of::<Alternative>() + one(&top.token, &top.bytes));
        size_of::<Self>() + one(&self.name, &self.bytes) + top.sum::<usize>()
    }
}

/// Bytes that these take in memory.
pub(super) fn size(tokens: &[Token]) -> usize {
    tokens.iter().map(Token::size).sum()
}

fn alternative(told: v1::AlternativeToken) -> Alternative {
    Alternative {
        token: name(&told.text_bytes),
        logprob: told.logprob,
        bytes: told.text_bytes,
    }
}

/// The text of a token, or its bytes if they are not whole characters.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut name, byte| {
            // Writing to a String cannot fail.
            let _ = write!(name, "\\x{byte:02x}");
            name
        }),
    }
}

/// The chat's form.
pub(super) fn chat(tokens: Vec<Token>) -> ChatLogprobs {
    let token = |token: Token| ChatToken {
        token: token.name,
        logprob: token.logprob.unwrap_or_default(),
        bytes: token.bytes,
        top_logprobs: token.top,
    };
    ChatLogprobs {
        content: tokens.into_iter().map(token).collect(),
    }
}

/// The text's form, from a character on, which moves past these tokens.
pub(super) fn text(tokens: Vec<Token>, offset: &mut u32) -> TextLogprobs {
    let mut all = TextLogprobs {
        tokens: Vec::with_capacity(tokens.len()),
        token_logprobs: Vec::with_capacity(tokens.len()),
        top_logprobs: Vec::with_capacity(tokens.len()),
        text_offset: Vec::with_capacity(tokens.len()),
    };
    for token in tokens {
        let top = token.logprob.map(|own| {
            let others = token.top.into_iter().map(|one| (one.token, one.logprob));
            others.chain([(token.name.clone(), own)]).collect()
        });
        all.tokens.push(token.name);
        all.token_logprobs.push(token.logprob);
        all.top_logprobs.push(top);
        all.text_offset.push(*offset);
        *offset = offset.saturating_add(token.length);
    }
    all
}
