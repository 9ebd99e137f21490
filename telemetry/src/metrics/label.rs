//! Labels and the values that they may have. It must not know metrics.

/// What stands for everything that has no name of its own.
pub(super) const OTHER: &str = "other";
/// Longest value, in characters.
const MAX_CHARS: usize = 64;

/// A label of a metric.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub values: Values,
}

/// What a label may be. None of it ever comes from a client.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// One of these, else `other`.
    OneOf(&'static [&'static str]),
    /// A name that the code gives to a reason; whatever does not look like one is `other`.
    Reason,
    /// What this process is or serves: one value as long as it lives, cut to 64 characters, or `other`.
    Own,
}

impl Label {
    pub(super) const fn new(name: &'static str, values: Values) -> Self {
        Self { name, values }
    }

    /// The value as it is shown.
    pub(super) fn shown(&self, value: &str) -> String {
        match self.values {
            Values::OneOf(known) if !known.contains(&value) => OTHER.to_owned(),
            Values::Reason if !is_reason(value) => OTHER.to_owned(),
            Values::OneOf(_) | Values::Reason => value.to_owned(),
            Values::Own => value.chars().take(MAX_CHARS).collect(),
        }
    }
}

fn is_reason(value: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=MAX_CHARS).contains(&value.len()) && value.bytes().all(letters)
}
