//! Sequences and the tokens they yield.
//!
//! It must not know which leg carries them.

use std::time::Duration;

use baton_sampling::{
    LOGPROB_FLOOR, MAX_CHOICES, MAX_COMPLETION_TOKENS, MAX_LOGPROBS, TokenLogprobs,
};

use super::check::{entries, fixed, length, name, present, refused, within};
use super::sampling::{admitted_sampling_from_wire, sampling_to_wire};
use crate::domain::{Completion, FinishReason, GeneratedToken, PromptLogprobs, SequenceSpec};
use crate::error::ConvertError;
use crate::ids::{Attempt, Incarnation, RequestId};
use crate::limits::{
    MAX_CACHE_SALT_BYTES, MAX_CONTEXT_TOKENS, MAX_DEADLINE_MS, MAX_PROMPT_LOGPROBS,
    MAX_REQUEST_ID_BYTES,
};
use crate::v1;

/// What a worker's model allows a sequence to be.
#[derive(Debug, Clone, Copy)]
pub struct SequenceLimits {
    /// Number of token ids.
    pub vocabulary: u32,
    /// Longest prompt + completion, in tokens; a prompt leaves room for one.
    pub context_length: u32,
}

impl SequenceSpec {
    /// Checks and converts the first message of a leg.
    ///
    /// # Errors
    /// The first field that is missing or out of range.
    pub fn from_wire(
        spec: v1::SequenceSpec,
        limits: &SequenceLimits,
    ) -> Result<Self, ConvertError> {
        let request_id = name("request_id", spec.request_id, MAX_REQUEST_ID_BYTES)?;
        let longest = limits.context_length.saturating_sub(1) as usize;
        if spec.prompt_ids.is_empty() {
            return Err(ConvertError::Missing {
                field: "prompt_ids",
            });
        }
        length("prompt_ids", "tokens", spec.prompt_ids.len(), longest)?;
        known_ids("prompt_ids", &spec.prompt_ids, limits.vocabulary)?;
        let options = present("sampling", spec.sampling)?;
        let params = admitted_sampling_from_wire(&options, limits.vocabulary)?;
        let choices = params.choices as usize;
        if !spec.completions.is_empty() && spec.completions.len() != choices {
            let allowed = format!("none, or {choices} (one per choice)");
            return Err(refused("completions", spec.completions.len(), allowed));
        }
        for completion in &spec.completions {
            let room = (longest + 1 - spec.prompt_ids.len()).min(params.max_tokens as usize);
            length("completions", "tokens", completion.token_ids.len(), room)?;
            known_ids("completions", &completion.token_ids, limits.vocabulary)?;
        }
        length(
            "cache_salt",
            "bytes",
            spec.cache_salt.len(),
            MAX_CACHE_SALT_BYTES,
        )?;
        let deadline_ms = within("deadline_ms", spec.deadline_ms, 1..=MAX_DEADLINE_MS)?;
        Ok(Self {
            request_id: RequestId(request_id),
            incarnation: Incarnation(spec.incarnation),
            fingerprint_digest: fixed("fingerprint_digest", &spec.fingerprint_digest)?,
            prompt_ids: spec.prompt_ids,
            completions: spec.completions.into_iter().map(Completion::from).collect(),
            params,
            cache_salt: spec.cache_salt,
            time_left: Duration::from_millis(u64::from(deadline_ms)),
            attempt: attempt("attempt", spec.attempt)?,
        })
    }
}

impl From<SequenceSpec> for v1::SequenceSpec {
    fn from(spec: SequenceSpec) -> Self {
        Self {
            request_id: spec.request_id.0,
            incarnation: spec.incarnation.0,
            fingerprint_digest: spec.fingerprint_digest.to_vec(),
            prompt_ids: spec.prompt_ids,
            completions: spec
                .completions
                .into_iter()
                .map(v1::Completion::from)
                .collect(),
            sampling: Some(sampling_to_wire(&spec.params)),
            cache_salt: spec.cache_salt,
            // A request whose time is up still says so itself: zero would be refused as malformed.
            deadline_ms: spec
                .time_left
                .as_millis()
                .clamp(1, u128::from(MAX_DEADLINE_MS)) as u32,
            attempt: spec.attempt.0,
        }
    }
}

impl From<v1::Completion> for Completion {
    fn from(completion: v1::Completion) -> Self {
        Self {
            token_ids: completion.token_ids,
            ended: completion.ended,
        }
    }
}

impl From<Completion> for v1::Completion {
    fn from(completion: Completion) -> Self {
        Self {
            token_ids: completion.token_ids,
            ended: completion.ended,
        }
    }
}

/// `UNSPECIFIED` is "not ended".
impl TryFrom<v1::FinishReason> for FinishReason {
    type Error = ConvertError;

    fn try_from(reason: v1::FinishReason) -> Result<Self, ConvertError> {
        match reason {
            v1::FinishReason::Stop => Ok(Self::Stop),
            v1::FinishReason::Length => Ok(Self::Length),
            v1::FinishReason::Unspecified => Err(ConvertError::Missing {
                field: "finish_reason",
            }),
        }
    }
}

impl From<FinishReason> for v1::FinishReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
        }
    }
}

impl TryFrom<v1::GeneratedToken> for GeneratedToken {
    type Error = ConvertError;

    fn try_from(token: v1::GeneratedToken) -> Result<Self, ConvertError> {
        let finish = match v1::FinishReason::try_from(token.finish_reason) {
            Ok(v1::FinishReason::Unspecified) => None,
            Ok(reason) => Some(reason.try_into()?),
            Err(_) => {
                return Err(refused("finish_reason", token.finish_reason, "0 to 2"));
            }
        };
        Ok(Self {
            attempt: attempt("token.attempt", token.attempt)?,
            choice: choice(token.choice)?,
            position: within(
                "token.position",
                token.position,
                0..=MAX_COMPLETION_TOKENS - 1,
            )?,
            token_id: token.token_id,
            logprobs: token.logprobs.map(TokenLogprobs::try_from).transpose()?,
            finish,
        })
    }
}

impl From<GeneratedToken> for v1::GeneratedToken {
    fn from(token: GeneratedToken) -> Self {
        let finish = token
            .finish
            .map_or(v1::FinishReason::Unspecified, Into::into);
        Self {
            attempt: token.attempt.0,
            choice: token.choice,
            position: token.position,
            token_id: token.token_id,
            logprobs: token.logprobs.as_ref().map(v1::TokenLogprobs::from),
            finish_reason: finish.into(),
        }
    }
}

impl TryFrom<v1::PromptLogprobs> for PromptLogprobs {
    type Error = ConvertError;

    fn try_from(some: v1::PromptLogprobs) -> Result<Self, ConvertError> {
        let (got, limit) = (some.logprobs.len(), MAX_PROMPT_LOGPROBS);
        within("prompt_logprobs.entries", got, 1..=limit)?;
        let entries = some.logprobs.into_iter().map(TokenLogprobs::try_from);
        Ok(Self {
            attempt: attempt("prompt_logprobs.attempt", some.attempt)?,
            position: within(
                "prompt_logprobs.position",
                some.position,
                1..=MAX_CONTEXT_TOKENS,
            )?,
            entries: entries.collect::<Result<_, _>>()?,
        })
    }
}

impl From<PromptLogprobs> for v1::PromptLogprobs {
    fn from(some: PromptLogprobs) -> Self {
        Self {
            attempt: some.attempt.0,
            position: some.position,
            logprobs: some.entries.iter().map(v1::TokenLogprobs::from).collect(),
        }
    }
}

impl TryFrom<v1::TokenLogprobs> for TokenLogprobs {
    type Error = ConvertError;

    fn try_from(logprobs: v1::TokenLogprobs) -> Result<Self, ConvertError> {
        entries("logprobs.top", logprobs.top.len(), MAX_LOGPROBS as usize)?;
        let checked = |value| within("logprobs", value, LOGPROB_FLOOR..=0.0);
        let top = logprobs
            .top
            .iter()
            .map(|entry| checked(entry.logprob).map(|logprob| (entry.token_id, logprob)));
        Ok(Self {
            chosen: checked(logprobs.chosen)?,
            top: top.collect::<Result<_, _>>()?,
        })
    }
}

/// Texts and bytes of alternatives stay empty: only the router knows them.
impl From<&TokenLogprobs> for v1::TokenLogprobs {
    fn from(logprobs: &TokenLogprobs) -> Self {
        let top = logprobs
            .top
            .iter()
            .map(|&(token_id, logprob)| v1::AlternativeToken {
                token_id,
                logprob,
                ..v1::AlternativeToken::default()
            });
        Self {
            chosen: logprobs.chosen,
            top: top.collect(),
        }
    }
}

pub(super) fn attempt(field: &'static str, attempt: u32) -> Result<Attempt, ConvertError> {
    within(field, attempt, 1..=u32::MAX).map(Attempt)
}

pub(super) fn choice(choice: u32) -> Result<u32, ConvertError> {
    within("choice", choice, 0..=MAX_CHOICES - 1)
}

fn known_ids(field: &'static str, ids: &[u32], vocabulary: u32) -> Result<(), ConvertError> {
    match ids.iter().find(|&&id| id >= vocabulary) {
        Some(id) => Err(refused(
            field,
            format!("token id {id}"),
            format!("ids below {vocabulary}"),
        )),
        None => Ok(()),
    }
}
