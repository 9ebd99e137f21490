//! Bodies of HTTP clients by kind, read as the router reads them: one entry for whoever throws arbitrary
//! bytes at it. It must not know answers.

use super::chat::ChatRequest;
use super::completion::CompletionRequest;
use super::error::HttpError;
use super::fields::parse;
use super::routes::Generates as _;
use super::texts::{DetokenizeRequest, TokenizeRequest};

/// A body by its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpBody {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
    /// `/tokenize`.
    Tokenize,
    /// `/detokenize`.
    Detokenize,
}

impl HttpBody {
    /// All kinds.
    pub const ALL: [Self; 4] = [
        Self::Chat,
        Self::Completion,
        Self::Tokenize,
        Self::Detokenize,
    ];

    /// Reads a body of this kind; whether it is one, as far as can be told without a model.
    pub fn accepts(self, body: &[u8]) -> bool {
        self.read(body).is_ok()
    }

    fn read(self, body: &[u8]) -> Result<(), HttpError> {
        match self {
            Self::Chat => drop(parse::<ChatRequest>(body)?.asked()?.requests()),
            Self::Completion => drop(parse::<CompletionRequest>(body)?.asked()?.requests()),
            Self::Tokenize => drop(parse::<TokenizeRequest>(body)?),
            Self::Detokenize => drop(parse::<DetokenizeRequest>(body)?),
        }
        Ok(())
    }
}
