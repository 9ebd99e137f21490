//! Cutting ASCII text into words as GPT-2's pattern does, without a regular expression: short prompts spend most of
//! their time there. Other texts and other patterns go the common way, and both ways give the same words.
//!
//! Must not know of vocabularies.

use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

/// GPT-2's pattern: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, over pieces that may
/// have been cut at digits before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AsciiWords {
    /// Every digit stands alone, and ends the text before it.
    single_digits: bool,
}

/// What follows an apostrophe as a word of its own.
const CONTRACTIONS: [&[u8]; 7] = [b"s", b"t", b"re", b"ve", b"m", b"ll", b"d"];

/// Kinds of characters that the pattern tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Letter,
    Digit,
    Space,
    Other,
}

impl Kind {
    fn of(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => Self::Letter,
            b'0'..=b'9' => Self::Digit,
            b'\t'..=b'\r' | b' ' => Self::Space,
            _ => Self::Other,
        }
    }
}

impl AsciiWords {
    /// If that is how these parts cut a text.
    pub(crate) fn of(
        normalizer: Option<&NormalizerWrapper>,
        pre_tokenizer: Option<&PreTokenizerWrapper>,
    ) -> Option<Self> {
        let parts = match pre_tokenizer? {
            PreTokenizerWrapper::Sequence(parts) => parts.as_ref(),
            single => std::slice::from_ref(single),
        };
        let (single_digits, bytes) = match parts {
            [PreTokenizerWrapper::ByteLevel(bytes)] => (false, bytes),
            [
                PreTokenizerWrapper::Digits(digits),
                PreTokenizerWrapper::ByteLevel(bytes),
            ] if digits.individual_digits => (true, bytes),
            _ => return None,
        };
        let is_gpt_2 = normalizer.is_none() && bytes.use_regex && !bytes.add_prefix_space;
        is_gpt_2.then_some(Self { single_digits })
    }

    /// Calls `take` with each word, in GPT-2's alphabet.
    pub(crate) fn each<E>(
        self,
        text: &str,
        mut take: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = text.as_bytes();
        let mut word = String::new();
        while !rest.is_empty() {
            let (this, after) = rest.split_at(self.length(rest));
            word.clear();
            word.extend(this.iter().map(|byte| printable(*byte)));
            take(&word)?;
            rest = after;
        }
        Ok(())
    }

    /// Bytes of the word that a text begins with.
    fn length(self, text: &[u8]) -> usize {
        if self.single_digits {
            let is_digit = |byte: &u8| Kind::of(*byte) == Kind::Digit;
            return match text.iter().position(is_digit) {
                Some(0) => 1,
                Some(end) => length(&text[..end]),
                None => length(text),
            };
        }
        length(text)
    }
}

fn length(text: &[u8]) -> usize {
    if let Some(rest) = text.strip_prefix(b"'")
        && let Some(word) = CONTRACTIONS.iter().find(|word| rest.starts_with(word))
    {
        return 1 + word.len();
    }
    let run = |from: usize, kind: Kind| {
        let same = text[from..]
            .iter()
            .take_while(|byte| Kind::of(**byte) == kind);
        from + same.count()
    };
    // One space belongs to the word that follows it.
    let from = usize::from(text.first() == Some(&b' '));
    match text.get(from).map(|byte| Kind::of(*byte)) {
        Some(kind) if kind != Kind::Space => return run(from, kind),
        _ => {}
    }
    // Of white space before a word, the last character stays for that word.
    match run(0, Kind::Space) {
        all if all == text.len() || all == 1 => all,
        several => several - 1,
    }
}

/// A byte in GPT-2's alphabet.
fn printable(byte: u8) -> char {
    match byte {
        b'!'..=b'~' => char::from(byte),
        0x7F => '\u{121}',
        // The first 33 bytes, space included, in order.
        _ => char::from_u32(0x100 + u32::from(byte)).unwrap_or('\u{100}'),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::digits::Digits;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    fn cuts() -> [PreTokenizerWrapper; 2] {
        let bytes = || PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true));
        let digits = PreTokenizerWrapper::Digits(Digits::new(true));
        let both = Sequence::new(vec![digits, bytes()]);
        [bytes(), PreTokenizerWrapper::Sequence(both)]
    }

    fn same(text: &str) {
        for cut in cuts() {
            let mut expected = PreTokenizedString::from(text);
            cut.pre_tokenize(&mut expected).unwrap();
            let expected = expected.get_splits(OffsetReferential::Normalized, OffsetType::None);
            let expected: Vec<String> = expected
                .iter()
                .map(|(word, ..)| (*word).to_owned())
                .collect();
            let mut words = Vec::new();
            let ascii = AsciiWords::of(None, Some(&cut)).unwrap();
            let taken: Result<(), ()> = ascii.each(text, |word| {
                words.push(word.to_owned());
                Ok(())
            });
            taken.unwrap();
            assert_eq!(words, expected, "{text:?} {cut:?}");
        }
    }

    #[test]
    fn tok_07_every_short_text_of_these_is_cut_as_by_the_pattern() {
        let bytes = [
            " ", "\n", "\t", "a", "s", "'", "1", ".", "\u{1}", "\u{7f}", "ll", "re",
        ];
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            let longer = texts
                .iter()
                .flat_map(|text| bytes.iter().map(move |b| format!("{text}{b}")));
            texts = longer.collect();
            for text in &texts {
                same(text);
            }
        }
        for byte in 0..0x80u8 {
            let c = char::from(byte);
            for text in [
                format!("{c}"),
                format!("a{c}b"),
                format!(" {c}{c} 1"),
                format!("'{c}"),
            ] {
                same(&text);
            }
        }
    }

    proptest! {
        #[test]
        fn tok_07_ascii_is_cut_as_by_the_pattern(text in "[ -~\\t\\r\\n]{0,60}") {
            same(&text);
        }

        #[test]
        fn tok_07_any_ascii_is_cut_as_by_the_pattern(text in "[\\x00-\\x7f]{0,40}") {
            same(&text);
        }
    }
}
