//! User text inside a rendered template, kept apart from the template's own.
//!
//! A template may trim, split or join what users wrote, so where user text ends up is only known
//! after rendering. Therefore two characters that occur nowhere else (the marks) are put into every
//! user text before rendering:
//!
//! - one *before*: each character that some control token begins with, and the first character that
//!   is not white space;
//! - the other *after*: each character that some control token begins with, for templates that cut
//!   the head of a text off.
//!
//! After rendering the marks are taken out again; their places are [`Barriers`] that no control token
//! may touch. So a control token cannot begin inside user text, whatever the template did to it, and
//! one that begins in the template cannot be completed by the head of a user text. Everything else,
//! BPE included, sees the text without marks.
//!
//! It must not know of templates or tokens' ids.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use crate::TextError;

/// Noncharacters first, then the private planes: 131,100 candidates.
const CANDIDATES: [RangeInclusive<char>; 3] = [
    '\u{FDD0}'..='\u{FDEF}',
    '\u{F0000}'..='\u{FFFFD}',
    '\u{100000}'..='\u{10FFFD}',
];

/// Which characters a model's control tokens begin with, and which are no candidates for a mark.
#[derive(Debug, Clone)]
pub(crate) struct Marker {
    starts: BTreeSet<char>,
    /// Whether white space at the head of a user text could complete a control token.
    spaced: bool,
    taken: BTreeSet<char>,
}

/// A marker with the marks chosen for one set of user texts.
pub(crate) struct Marks<'a> {
    marker: &'a Marker,
    before: char,
    after: char,
}

/// Byte positions that user text forbids to control tokens, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Barriers {
    /// No control token may begin here or reach across.
    before: Vec<usize>,
    /// No control token may reach across; one may begin here.
    after: Vec<usize>,
}

impl Barriers {
    /// Whether a control token may stand at these bytes.
    pub(crate) fn admit(&self, place: &Range<usize>) -> bool {
        let none = |list: &[usize], low: usize| {
            let next = list.partition_point(|&p| p < low);
            list.get(next).is_none_or(|&p| p >= place.end)
        };
        none(&self.before, place.start) && none(&self.after, place.start + 1)
    }
}

/// A rendered text without its marks, and where they were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unmarked {
    pub(crate) text: String,
    pub(crate) barriers: Barriers,
}

impl Marker {
    /// `fixed`: everything that renders besides user text (the template, names of special tokens).
    pub(crate) fn new<'a>(
        controls: impl Iterator<Item = &'a str>,
        fixed: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut marker = Self {
            starts: BTreeSet::new(),
            spaced: false,
            taken: BTreeSet::new(),
        };
        for text in controls {
            marker.starts.extend(text.chars().next());
            marker.spaced |= text.contains(char::is_whitespace);
            marker.taken.extend(candidates_in(text));
        }
        for text in fixed {
            marker.taken.extend(candidates_in(text));
        }
        marker
    }

    /// Chooses marks that occur in none of the texts.
    ///
    /// # Errors
    /// The texts leave fewer than two candidates.
    pub(crate) fn choose<'a>(
        &self,
        texts: impl Iterator<Item = &'a str>,
    ) -> Result<Marks<'_>, TextError> {
        let used: BTreeSet<char> = texts.flat_map(candidates_in).collect();
        let mut free = CANDIDATES
            .into_iter()
            .flatten()
            .filter(|c| !used.contains(c) && !self.taken.contains(c));
        match (free.next(), free.next()) {
            (Some(before), Some(after)) => Ok(Marks {
                marker: self,
                before,
                after,
            }),
            _ => Err(TextError::NoMark),
        }
    }
}

impl Marks<'_> {
    /// The user text with marks.
    pub(crate) fn mark<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let head = if self.marker.spaced {
            (!text.is_empty()).then_some(0)
        } else {
            text.find(|c: char| !c.is_whitespace())
        };
        let Some(head) = head else {
            return Cow::Borrowed(text);
        };
        let mut marked = String::with_capacity(text.len() + 16);
        for (at, c) in text.char_indices() {
            let start = self.marker.starts.contains(&c);
            if at == head || start {
                marked.push(self.before);
            }
            marked.push(c);
            if start {
                marked.push(self.after);
            }
        }
        Cow::Owned(marked)
    }

    /// Takes the marks out of a rendered text.
    pub(crate) fn unmark(&self, rendered: &str) -> Unmarked {
        let mut text = String::with_capacity(rendered.len());
        let mut barriers = Barriers::default();
        let mut rest = rendered;
        while let Some(at) = rest.find([self.before, self.after]) {
            let (piece, marked) = rest.split_at(at);
            text.push_str(piece);
            let mut chars = marked.chars();
            if chars.next() == Some(self.before) {
                barriers.before.push(text.len());
            } else {
                barriers.after.push(text.len());
            }
            rest = chars.as_str();
        }
        text.push_str(rest);
        Unmarked { text, barriers }
    }
}

fn candidates_in(text: &str) -> impl Iterator<Item = char> {
    text.chars()
        .filter(|c| CANDIDATES.iter().any(|range| range.contains(c)))
}
