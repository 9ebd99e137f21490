//! Tokenizer and chat template of one model behind one type.
//!
//! Must not know how the parts work, nor of requests.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use baton_model_file::{ModelConfig, TextMetadata, TokenizerSource};

use crate::added::{AddedTokens, Control, Segment};
use crate::chat::{Chat, ChatMessage};
use crate::detokenizer::{Detokenizer, TokenText};
use crate::digest::digest;
use crate::pipeline::Pipeline;
use crate::vocabulary::{Kind, Vocabulary};
use crate::{TextError, gguf, hugging_face};

/// Longest text that is tokenized, whatever the model.
pub const MAX_TEXT_BYTES: usize = 4 << 20;

/// What a tokenizer file is read into.
pub(crate) struct Parts {
    pub(crate) pipeline: Pipeline,
    pub(crate) added: AddedTokens,
    pub(crate) vocabulary: Vocabulary,
    /// Whether the tokenizer puts a space before a text and decoding takes it away.
    pub(crate) strips_first_space: bool,
}

/// Tokenizer and template of one model; immutable and shared.
pub struct TextModel {
    parts: Parts,
    chat: Option<Chat>,
    bos: Option<u32>,
    add_bos: bool,
    max_text_bytes: usize,
    digest: [u8; 32],
}

impl fmt::Debug for TextModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextModel")
            .field("vocabulary", &self.parts.vocabulary.len())
            .field("chat", &self.chat.is_some())
            .field("bos", &self.bos)
            .field("add_bos", &self.add_bos)
            .field("max_text_bytes", &self.max_text_bytes)
            .finish_non_exhaustive()
    }
}

impl TextModel {
    /// Builds the tokenizer and compiles the template.
    ///
    /// # Errors
    /// A tokenizer that is not supported (named by its key), inconsistent data, or a template that
    /// does not compile.
    pub fn new(text: &TextMetadata, config: &ModelConfig) -> Result<Self, TextError> {
        let mut parts = match &text.tokenizer {
            TokenizerSource::Gguf(source) => gguf::parts(source)?,
            TokenizerSource::TokenizerJson(json) => hugging_face::parts(json, config.vocabulary)?,
        };
        if parts.vocabulary.len() > config.vocabulary as usize {
            return Err(TextError::invalid(format!(
                "{} tokens, but the embedding has {} rows",
                parts.vocabulary.len(),
                config.vocabulary
            )));
        }
        for (name, id) in [("bos", text.bos_id), ("eos", text.eos_id)] {
            if let Some(id) = id.filter(|&id| parts.vocabulary.get(id).is_none()) {
                return Err(TextError::invalid(format!("{name} id {id} is no token")));
            }
        }
        for &id in config
            .eos_ids
            .iter()
            .chain(&text.bos_id)
            .chain(&text.eos_id)
        {
            parts.vocabulary.hide(id);
        }
        let name = |id: Option<u32>| {
            let bytes = id.and_then(|id| parts.vocabulary.get(id));
            bytes.map_or(String::new(), |(bytes, _)| {
                String::from_utf8_lossy(bytes).into_owned()
            })
        };
        let chat = text
            .chat_template
            .as_deref()
            .map(|source| Chat::new(source, &name(text.bos_id), &name(text.eos_id), &parts.added))
            .transpose()?;
        // A longer text has more tokens than the model's context, whatever it says.
        let fits = (config.context_length as usize).saturating_mul(parts.vocabulary.longest());
        Ok(Self {
            chat,
            bos: text.bos_id,
            add_bos: text.add_bos,
            max_text_bytes: fits.min(MAX_TEXT_BYTES),
            digest: digest(text),
            parts,
        })
    }

    /// Digest of the tokenizer (vocabulary, merges, special ids, pre-tokenizer, template), for the
    /// fingerprint.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Longest text that is taken, in bytes.
    pub fn max_text_bytes(&self) -> usize {
        self.max_text_bytes
    }

    /// Whether [`encode_chat`](Self::encode_chat) can work.
    pub fn has_chat_template(&self) -> bool {
        self.chat.is_some()
    }

    /// Raw prompt: BOS exactly once if the model asks for it; control markers stay plain text.
    ///
    /// # Errors
    /// [`TextError::EmptyPrompt`] for a text without any token (a prompt never starts from BOS
    /// alone), [`TextError::TooLong`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let ids = self.encode(text, false)?;
        if ids.is_empty() {
            return Err(TextError::EmptyPrompt);
        }
        Ok(self.with_bos(ids))
    }

    /// Plain encoding without BOS; `parse_special` recognises control tokens.
    ///
    /// # Errors
    /// [`TextError::TooLong`] before any work.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        if text.len() > self.max_text_bytes {
            return Err(TextError::TooLong {
                what: "the prompt",
                bytes: text.len(),
                limit: self.max_text_bytes,
            });
        }
        let control = if parse_special {
            Control::Anywhere
        } else {
            Control::Never
        };
        self.encode_segments(text, control)
    }

    /// Renders the chat template, with the assistant's turn opened, and encodes it. User text never
    /// becomes a control token. BOS stands exactly once at the start if the model asks for it,
    /// whether or not the template writes it.
    ///
    /// # Errors
    /// No template, no or too many messages, an unknown role, text above the limit, or the template's
    /// own refusal or failure.
    pub fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, TextError> {
        let chat = self.chat.as_ref().ok_or(TextError::NoTemplate)?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.as_secs());
        let rendered = chat.render(messages, &self.parts.added, self.max_text_bytes, now)?;
        let ids = self.encode_segments(&rendered.text, Control::Outside(&rendered.barriers))?;
        if ids.is_empty() {
            return Err(TextError::EmptyPrompt);
        }
        Ok(self.with_bos(ids))
    }

    /// Whole-sequence decode, by the rules of [`Detokenizer`]. `skip_special` leaves out control
    /// tokens.
    ///
    /// # Errors
    /// An id that the tokenizer does not have.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        self.decode_at_most(usize::MAX, ids, skip_special)
    }

    /// The same, of no more than so many bytes: a short list may mean a long text.
    ///
    /// # Errors
    /// An id outside the vocabulary, or a longer text.
    pub fn decode_at_most(
        &self,
        limit: usize,
        ids: &[u32],
        skip_special: bool,
    ) -> Result<String, TextError> {
        let vocabulary = &self.parts.vocabulary;
        let mut text = TokenText::new(self.parts.strips_first_space);
        let mut out = String::new();
        for &id in ids {
            if vocabulary.get(id).is_none() {
                return Err(TextError::UnknownToken {
                    id,
                    vocabulary: vocabulary.len(),
                });
            }
            text.push(vocabulary, id, skip_special, &mut out);
            if out.len() > limit {
                return Err(TextError::TooLong {
                    what: "the text of these ids",
                    bytes: out.len(),
                    limit,
                });
            }
        }
        Ok(out)
    }

    /// Bytes of one token, possibly part of a character (for logprobs' `bytes`); `None` if no token
    /// has the id.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.parts
            .vocabulary
            .get(id)
            .map(|(bytes, _)| bytes.to_vec())
    }

    /// Whether the token is never part of the text shown.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.parts.vocabulary.get(id), Some((_, Kind::Control)))
    }

    /// A detokenizer for one choice.
    ///
    /// # Errors
    /// More than [`MAX_STOPS`](crate::MAX_STOPS) stop strings, an empty one, or one above
    /// [`MAX_STOP_BYTES`](crate::MAX_STOP_BYTES).
    pub fn detokenizer(self: &Arc<Self>, stops: &[String]) -> Result<Detokenizer, TextError> {
        Detokenizer::new(Arc::clone(self), stops)
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.parts.vocabulary
    }

    pub(crate) fn strips_first_space(&self) -> bool {
        self.parts.strips_first_space
    }

    fn encode_segments(&self, text: &str, control: Control<'_>) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        for segment in self.parts.added.split(text, control) {
            match segment {
                Segment::Token(id) => ids.push(id),
                Segment::Text(range) => {
                    let first = range.start == 0;
                    self.parts.pipeline.encode(&text[range], first, &mut ids)?;
                }
            }
        }
        Ok(ids)
    }

    /// One BOS at the start if the model asks for it; a template's repetition is dropped.
    fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let Some(bos) = self.bos.filter(|_| self.add_bos) else {
            return ids;
        };
        let written = ids.iter().take_while(|&&id| id == bos).count();
        if written == 0 {
            ids.insert(0, bos);
        } else {
            ids.drain(1..written);
        }
        ids
    }
}
