//! Added tokens: texts that are one token wherever they occur, found before BPE.
//!
//! User-defined tokens are found in any text, control tokens only where the caller allows them and
//! only outside user text. The leftmost match wins, and of those the longest that is allowed. Must
//! not know of BPE or templates.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::TextError;
use crate::marks::Barriers;

/// Most bytes of all added tokens together: the search tree has up to one node for each.
const MAX_ADDED_BYTES: usize = 512 << 10;

/// Most bytes of one of them: a text is looked through again from each of its bytes.
const MAX_TOKEN_BYTES: usize = 256;

/// One added token.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // The fields of a tokenizer.json.
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) text: String,
    /// Whether it steers the model (as opposed to being a piece of text).
    pub(crate) control: bool,
    /// Takes white space on its left with it.
    pub(crate) lstrip: bool,
    /// Takes white space on its right with it.
    pub(crate) rstrip: bool,
    /// Not found inside a longer word.
    pub(crate) single_word: bool,
}

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Ordinary text: these bytes.
    Text(Range<usize>),
    /// An added token.
    Token(u32),
}

/// Where control tokens may be found in a text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Control<'a> {
    /// Nowhere.
    Never,
    /// Everywhere.
    Anywhere,
    /// Where these admit it.
    Outside(&'a Barriers),
}

/// All added tokens of a model.
#[derive(Debug, Clone)]
pub(crate) struct AddedTokens {
    tokens: Vec<AddedToken>,
    nodes: Vec<Node>,
    /// Bytes that some token begins with.
    first: [bool; 256],
}

#[derive(Debug, Clone, Default)]
struct Node {
    children: BTreeMap<u8, u32>,
    token: Option<u32>,
}

impl AddedTokens {
    /// Empty texts are never found; of two tokens with the same text the first counts.
    ///
    /// # Errors
    /// More text than [`MAX_ADDED_BYTES`], or than [`MAX_TOKEN_BYTES`] in one.
    pub(crate) fn new(tokens: Vec<AddedToken>) -> Result<Self, TextError> {
        let bytes = tokens.iter().map(|token| token.text.len()).sum();
        if bytes > MAX_ADDED_BYTES {
            return Err(TextError::TooLong {
                what: "the text of all added tokens",
                bytes,
                limit: MAX_ADDED_BYTES,
            });
        }
        let longest = tokens.iter().map(|token| token.text.len()).max();
        if let Some(bytes) = longest.filter(|bytes| *bytes > MAX_TOKEN_BYTES) {
            return Err(TextError::TooLong {
                what: "an added token",
                bytes,
                limit: MAX_TOKEN_BYTES,
            });
        }
        let mut nodes = vec![Node::default()];
        let mut first = [false; 256];
        for (index, token) in tokens.iter().enumerate() {
            let bytes = token.text.as_bytes();
            let Some(&lead) = bytes.first() else {
                continue;
            };
            first[usize::from(lead)] = true;
            let mut at = 0;
            for &byte in bytes {
                let fresh = nodes.len() as u32;
                let next = *nodes[at].children.entry(byte).or_insert(fresh);
                if next == fresh {
                    nodes.push(Node::default());
                }
                at = next as usize;
            }
            nodes[at].token.get_or_insert(index as u32);
        }
        Ok(Self {
            tokens,
            nodes,
            first,
        })
    }

    /// Whether the id is a control token.
    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.tokens
            .iter()
            .any(|token| token.id == id && token.control)
    }

    /// Texts of all control tokens.
    pub(crate) fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.tokens
            .iter()
            .filter(|token| token.control && !token.text.is_empty())
            .map(|token| token.text.as_str())
    }

    /// Cuts a text at the added tokens in it. Pieces of text are never empty.
    pub(crate) fn split(&self, text: &str, control: Control<'_>) -> Vec<Segment> {
        let bytes = text.as_bytes();
        let mut segments = Vec::new();
        let mut begin = 0;
        let mut at = 0;
        while at < bytes.len() {
            let found = if self.first[usize::from(bytes[at])] {
                self.longest(text, at, control)
            } else {
                None
            };
            let Some((token, mut end)) = found else {
                at += 1;
                continue;
            };
            let mut start = at;
            if token.lstrip {
                start = begin + text[begin..at].trim_end().len();
            }
            if token.rstrip {
                let rest = &text[end..];
                end += rest.len() - rest.trim_start().len();
            }
            if begin < start {
                segments.push(Segment::Text(begin..start));
            }
            segments.push(Segment::Token(token.id));
            begin = end;
            at = end;
        }
        if begin < bytes.len() {
            segments.push(Segment::Text(begin..bytes.len()));
        }
        segments
    }

    /// The longest token that may be taken at `start`, and where it ends.
    fn longest(
        &self,
        text: &str,
        start: usize,
        control: Control<'_>,
    ) -> Option<(&AddedToken, usize)> {
        let mut best = None;
        let mut at = 0;
        for (offset, byte) in text.as_bytes()[start..].iter().enumerate() {
            let Some(&next) = self.nodes[at].children.get(byte) else {
                break;
            };
            at = next as usize;
            if let Some(index) = self.nodes[at].token {
                let token = &self.tokens[index as usize];
                let end = start + offset + 1;
                if allowed(token, text, start..end, control) {
                    best = Some((token, end));
                }
            }
        }
        best
    }
}

fn allowed(token: &AddedToken, text: &str, place: Range<usize>, control: Control<'_>) -> bool {
    let admitted = match control {
        _ if !token.control => true,
        Control::Never => false,
        Control::Anywhere => true,
        Control::Outside(barriers) => barriers.admit(&place),
    };
    let in_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let alone = !token.single_word
        || !(in_word(text[..place.start].chars().next_back())
            || in_word(text[place.end..].chars().next()));
    admitted && alone
}
