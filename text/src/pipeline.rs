//! Ordinary text to ids: normalise, cut into words, merge bytes or characters (BPE).
//!
//! The parts are those of the `tokenizers` crate; this module checks what that crate takes on trust.
//! Must not know of added tokens or of file formats.

use std::collections::HashMap;

use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{
    Model, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, PreTokenizerWrapper,
};

use crate::TextError;
use crate::error::excerpt;
use crate::words::AsciiWords;

/// Words remembered with their ids, per thread that encodes.
const CACHED_WORDS: usize = 10_000;

/// What turns text between added tokens into ids.
pub(crate) struct Pipeline {
    pub(crate) normalizer: Option<NormalizerWrapper>,
    /// Cuts the text before which no token stands.
    pub(crate) first: Option<PreTokenizerWrapper>,
    /// Cuts any other text.
    pub(crate) rest: Option<PreTokenizerWrapper>,
    pub(crate) bpe: BPE,
    /// How ASCII text is cut, where that needs no more.
    ascii: Option<AsciiWords>,
}

/// How a BPE model treats what its vocabulary does not hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct BpeOptions {
    /// A word that is in the vocabulary is taken whole, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// Characters outside the vocabulary become `<0xNN>` tokens.
    pub(crate) byte_fallback: bool,
    /// Several unknown characters in a row become one unknown token.
    pub(crate) fuse_unknown: bool,
    /// The token of an unknown character; without one such characters are dropped.
    pub(crate) unknown: Option<String>,
}

/// The two tokens of a merge written as `"left right"`.
pub(crate) fn pair(rank: usize, merge: &str) -> Result<(String, String), TextError> {
    if let Some((left, right)) = merge.split_once(' ') {
        return Ok((left.to_owned(), right.to_owned()));
    }
    let merge = excerpt(merge);
    Err(TextError::invalid(format!(
        "merge {rank} is {merge:?}, not two tokens"
    )))
}

/// Builds the BPE model after checking that every merge is of known tokens into a known token.
pub(crate) fn bpe(
    vocabulary: HashMap<String, u32>,
    merges: Vec<(String, String)>,
    options: BpeOptions,
) -> Result<BPE, TextError> {
    let mut product = String::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        product.clear();
        product.push_str(left);
        product.push_str(right);
        for part in [left, right, &product] {
            if !vocabulary.contains_key(part) {
                let part = excerpt(part);
                return Err(TextError::invalid(format!(
                    "merge {rank} needs {part:?}, which is not in the vocabulary"
                )));
            }
        }
    }
    let mut builder = BPE::builder()
        .cache_capacity(CACHED_WORDS)
        .byte_fallback(options.byte_fallback)
        .fuse_unk(options.fuse_unknown)
        .ignore_merges(options.ignore_merges);
    if let Some(unknown) = options.unknown {
        if !vocabulary.contains_key(&unknown) {
            let unknown = excerpt(&unknown);
            return Err(TextError::invalid(format!(
                "the unknown token {unknown:?} is not in the vocabulary"
            )));
        }
        builder = builder.unk_token(unknown);
    }
    let vocabulary: tokenizers::models::bpe::Vocab = vocabulary.into_iter().collect();
    builder
        .vocab_and_merges(vocabulary, merges)
        .build()
        .map_err(|error| TextError::invalid(excerpt(&error.to_string())))
}

impl Pipeline {
    pub(crate) fn new(
        normalizer: Option<NormalizerWrapper>,
        pre_tokenizer: Option<PreTokenizerWrapper>,
        bpe: BPE,
    ) -> Self {
        Self {
            ascii: AsciiWords::of(normalizer.as_ref(), pre_tokenizer.as_ref()),
            normalizer,
            rest: pre_tokenizer.clone().map(without_first_prefix),
            first: pre_tokenizer,
            bpe,
        }
    }

    /// Appends the ids of a text. `first`: nothing stands before it.
    ///
    /// Characters for which the vocabulary has neither token nor bytes are dropped, as Hugging Face
    /// and llama.cpp do it (`SmolLM2` lacks 21 bytes that hardly occur in text).
    pub(crate) fn encode(
        &self,
        text: &str,
        first: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        if let Some(words) = self.ascii.filter(|_| text.is_ascii()) {
            return words.each(text, |word| self.merge(word, ids));
        }
        let mut words = PreTokenizedString::from(text);
        if let Some(normalizer) = &self.normalizer {
            words
                .normalize(|piece| normalizer.normalize(piece))
                .map_err(|error| failed(&error.to_string()))?;
        }
        if let Some(cut) = if first { &self.first } else { &self.rest } {
            cut.pre_tokenize(&mut words)
                .map_err(|error| failed(&error.to_string()))?;
        }
        for (word, ..) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            self.merge(word, ids)?;
        }
        Ok(())
    }

    /// Appends the ids of a word.
    fn merge(&self, word: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let tokens = self
            .bpe
            .tokenize(word)
            .map_err(|error| failed(&error.to_string()))?;
        ids.extend(tokens.into_iter().map(|token| token.id));
        Ok(())
    }
}

fn failed(detail: &str) -> TextError {
    TextError::Tokenize {
        detail: excerpt(detail),
    }
}

/// `Metaspace` with scheme `first` puts its mark only before text that nothing precedes; the library
/// tells that by offset, which a piece cut out of a longer text no longer has.
fn without_first_prefix(pre_tokenizer: PreTokenizerWrapper) -> PreTokenizerWrapper {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(mut metaspace)
            if metaspace.get_prepend_scheme() == PrependScheme::First =>
        {
            metaspace.set_prepend_scheme(PrependScheme::Never);
            PreTokenizerWrapper::Metaspace(metaspace)
        }
        PreTokenizerWrapper::Sequence(sequence) => {
            let parts = sequence.as_ref().iter().cloned();
            let parts = parts.map(without_first_prefix).collect();
            PreTokenizerWrapper::Sequence(Sequence::new(parts))
        }
        other => other,
    }
}
