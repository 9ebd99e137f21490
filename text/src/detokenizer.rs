//! The text of one choice, token by token.
//!
//! Ids become bytes, bytes become characters as soon as these are whole, characters leave unless they
//! could still begin a stop string. Rules, the same whether streamed or decoded at once:
//!
//! - A control token (and any end-of-sequence token) has no text.
//! - Bytes that cannot be UTF-8 become U+FFFD, as `String::from_utf8_lossy` does it.
//! - An incomplete character at the very end is dropped.
//! - With SentencePiece-style tokenizers one space at the very beginning is dropped.
//!
//! It must not know of requests, and holds no borrow, so that a task can own it.

use std::sync::Arc;

use crate::stop::StopMatcher;
use crate::utf8::Utf8Stream;
use crate::vocabulary::{Kind, Vocabulary};
use crate::{TextError, TextModel};

/// Streams the text of one choice.
#[derive(Debug)]
pub struct Detokenizer {
    model: Arc<TextModel>,
    text: TokenText,
    stops: StopMatcher,
}

/// What one more token gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delta {
    /// Text that can be sent now (may be empty).
    pub text: String,
    /// The stop string that has matched; nothing of it and nothing after it is ever sent.
    pub stopped: Option<String>,
}

impl Detokenizer {
    pub(crate) fn new(model: Arc<TextModel>, stops: &[String]) -> Result<Self, TextError> {
        let text = TokenText::new(model.strips_first_space());
        Ok(Self {
            model,
            text,
            stops: StopMatcher::new(stops)?,
        })
    }

    /// Takes the next token id. An id that the tokenizer does not have has no text. After a stop
    /// string has matched, nothing more comes out.
    pub fn push(&mut self, id: u32) -> Delta {
        let mut text = String::new();
        self.text.push(self.model.vocabulary(), id, true, &mut text);
        let (text, stopped) = self.stops.push(text);
        Delta { text, stopped }
    }

    /// Ends the choice: held text (a false start of a stop string) comes out, once.
    pub fn finish(&mut self) -> String {
        self.stops.finish()
    }
}

/// Ids to characters, without stop strings.
#[derive(Debug, Clone)]
pub(crate) struct TokenText {
    utf8: Utf8Stream,
    /// Whether a space would be the first character, and is to be dropped.
    strip: bool,
}

impl TokenText {
    pub(crate) fn new(strips_first_space: bool) -> Self {
        Self {
            utf8: Utf8Stream::default(),
            strip: strips_first_space,
        }
    }

    /// Appends the characters that this token completes.
    pub(crate) fn push(
        &mut self,
        vocabulary: &Vocabulary,
        id: u32,
        skip_control: bool,
        out: &mut String,
    ) {
        let Some((mut bytes, kind)) = vocabulary.get(id) else {
            return;
        };
        if bytes.is_empty() || (skip_control && kind == Kind::Control) {
            return;
        }
        if std::mem::take(&mut self.strip) {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.utf8.push(bytes, out);
    }
}
