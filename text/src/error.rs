//! What can be wrong with a model's text data or with text from a client.

/// A tokenizer, template or text that was refused.
///
/// [`TextError::is_client_error`] tells the client's mistakes from the model's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A prompt, or a chat, that yields no token.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Text larger than the model could ever take.
    #[error("{what} has {bytes} bytes, limit {limit}")]
    TooLong {
        /// Which text.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The most that is taken.
        limit: usize,
    },
    /// Too many items in a list.
    #[error("{count} {what}, limit {limit}")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// The most that is taken.
        limit: usize,
    },
    /// A chat role that does not exist.
    #[error("role {role:?} is not one of {}", crate::ROLES.join(", "))]
    UnknownRole {
        /// The role as given, cut to a printable length.
        role: String,
    },
    /// A stop string of no characters.
    #[error("stop string {index} is empty")]
    EmptyStop {
        /// Index in the list.
        index: usize,
    },
    /// A token id that the tokenizer does not have.
    #[error("token id {id} is not in the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Number of ids.
        vocabulary: usize,
    },
    /// The messages use every character that could mark their borders.
    #[error("the messages use all of Unicode's private and non-characters")]
    NoMark,
    /// Chat with a model that has no template.
    #[error("the model has no chat template; send a plain prompt")]
    NoTemplate,
    /// The template itself refused the messages (`raise_exception`).
    #[error("the chat template refused the messages: {message}")]
    TemplateRefused {
        /// What it said.
        message: String,
    },
    /// Rendering failed.
    #[error("the chat template failed: {detail}")]
    TemplateFailed {
        /// The engine's error.
        detail: String,
    },
    /// Rendering took more steps or memory than allowed.
    #[error("the chat template used more than {fuel} units of fuel")]
    TemplateFuel {
        /// The limit.
        fuel: u64,
    },
    /// Rendering made something too large, or took too long.
    #[error("the chat template passed its limit of {limit} {what}")]
    TemplateExcess {
        /// What there was too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// A template that does not compile.
    #[error("the model's chat template is invalid: {detail}")]
    TemplateInvalid {
        /// The compiler's error.
        detail: String,
    },
    /// The file lacks something without which ids would be guesswork.
    #[error("the model file lacks {key}")]
    Missing {
        /// Name of the key.
        key: &'static str,
    },
    /// A tokenizer of a kind that is not implemented.
    #[error("{key} is {value:?}, supported: {supported}")]
    Unsupported {
        /// Name of the key.
        key: &'static str,
        /// Its value, cut to a printable length.
        value: String,
        /// What would be accepted.
        supported: &'static str,
    },
    /// Tokenizer data that contradict themselves.
    #[error("invalid tokenizer: {detail}")]
    InvalidTokenizer {
        /// What is wrong where.
        detail: String,
    },
    /// The tokenizer failed on a text.
    #[error("cannot tokenize: {detail}")]
    Tokenize {
        /// The library's error.
        detail: String,
    },
}

impl TextError {
    /// Whether the client can mend it (as opposed to whoever chose the model).
    pub fn is_client_error(&self) -> bool {
        !matches!(
            self,
            Self::TemplateInvalid { .. }
                | Self::Missing { .. }
                | Self::Unsupported { .. }
                | Self::InvalidTokenizer { .. }
                | Self::Tokenize { .. }
        )
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::InvalidTokenizer {
            detail: detail.into(),
        }
    }
}

/// At most 80 characters of a text from outside, for an error message.
pub(crate) fn excerpt(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
