//! How tokens become text again, as far as it can be done token by token.
//!
//! Must not know of encoding.

use serde_json::Value;

use crate::TextError;
use crate::byte_level;
use crate::error::excerpt;

/// How tokens become text again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decoding {
    /// GPT-2's byte alphabet.
    ByteLevel,
    /// `▁` is a space and `<0xNN>` a byte.
    SentencePiece { strips_first_space: bool },
}

impl Decoding {
    /// Recognises the decoders whose effect on each single token is known.
    pub(super) fn new(decoder: Option<&Value>) -> Result<Self, TextError> {
        let refuse = |kind: &str| {
            Err(TextError::Unsupported {
                key: "tokenizer.json decoder",
                value: excerpt(kind),
                supported: "ByteLevel, Metaspace, or a Sequence of Replace(▁), ByteFallback, Fuse, Strip(space)",
            })
        };
        let kind = |value: &Value| value.get("type").and_then(Value::as_str).map(str::to_owned);
        let Some(decoder) = decoder.filter(|value| !value.is_null()) else {
            return refuse("absent");
        };
        let parts = match decoder.get("decoders").and_then(Value::as_array) {
            Some(parts) => parts.as_slice(),
            None => std::slice::from_ref(decoder),
        };
        let mut sentence_piece = false;
        let mut strips_first_space = false;
        for part in parts {
            let name = kind(part).unwrap_or_default();
            match name.as_str() {
                "ByteLevel" if parts.len() == 1 => return Ok(Self::ByteLevel),
                "Metaspace" if part.get("replacement").and_then(Value::as_str) == Some("▁") => {
                    sentence_piece = true;
                    strips_first_space = part.get("prepend_scheme").and_then(Value::as_str)
                        != Some("never")
                        && part.get("add_prefix_space").and_then(Value::as_bool) != Some(false);
                }
                "Replace"
                    if part.pointer("/pattern/String").and_then(Value::as_str) == Some("▁")
                        && part.get("content").and_then(Value::as_str) == Some(" ") =>
                {
                    sentence_piece = true;
                }
                "Strip"
                    if part.get("content").and_then(Value::as_str) == Some(" ")
                        && part.get("start").and_then(Value::as_u64) == Some(1)
                        && part.get("stop").and_then(Value::as_u64) == Some(0) =>
                {
                    strips_first_space = true;
                }
                "ByteFallback" | "Fuse" => {}
                _ => return refuse(&name),
            }
        }
        if !sentence_piece {
            return refuse("a Sequence without Replace");
        }
        Ok(Self::SentencePiece { strips_first_space })
    }

    /// The bytes that a token of the model's own vocabulary stands for.
    pub(super) fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => byte_level::to_bytes(token),
            Self::SentencePiece { .. } => piece_bytes(token),
        }
    }

    /// Whether one space at the beginning of a text is not part of it.
    pub(super) fn strips_first_space(self) -> bool {
        matches!(
            self,
            Self::SentencePiece {
                strips_first_space: true
            }
        )
    }
}

/// Bytes of a SentencePiece-style token: `<0xNN>` is a byte, `▁` a space.
fn piece_bytes(text: &str) -> Vec<u8> {
    let byte = text
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|hex| hex.len() == 2)
        .and_then(|hex| u8::from_str_radix(hex, 16).ok());
    match byte {
        Some(byte) => vec![byte],
        None => text.replace('▁', " ").into_bytes(),
    }
}
