//! The scheduler's tokens and those of the protocol, one for one. Nothing else.

use baton_proto::domain::{self, GeneratedToken};
use baton_proto::ids::Attempt;
use baton_scheduler::{FinishReason, Token};

/// A token as the protocol reports it.
pub fn to_generated(token: Token, attempt: Attempt) -> GeneratedToken {
    GeneratedToken {
        attempt,
        choice: token.choice,
        position: token.position,
        token_id: token.token_id,
        logprobs: token.logprobs,
        finish: token.finish.map(|finish| match finish {
            FinishReason::Stop => domain::FinishReason::Stop,
            FinishReason::Length => domain::FinishReason::Length,
        }),
    }
}

/// A token as the scheduler takes it.
pub fn from_generated(token: GeneratedToken) -> Token {
    Token {
        choice: token.choice,
        position: token.position,
        token_id: token.token_id,
        logprobs: token.logprobs,
        finish: token.finish.map(|finish| match finish {
            domain::FinishReason::Stop => FinishReason::Stop,
            domain::FinishReason::Length => FinishReason::Length,
        }),
    }
}
