//! `/v1/completions`: what a client may say, and the requests it means. It must not know answers.

use baton_proto::v1;
use baton_proto::v1::generate_request::Input;

use super::error::HttpError;
use super::fields::{Only, request};
use super::generate::{Asked, Common, Shape};
use super::prompts::{Prompt, Prompts};
use super::routes::Generates;

/// Completion tokens of a request that names no number: what clients of this endpoint know.
const DEFAULT_MAX_TOKENS: u32 = 16;

request! {
    /// Prompts to go on with.
    struct CompletionRequest with common: Common {
        /// A text, a list of token ids, or a list of up to 128 of either. Choices of several prompts are numbered prompt × n + choice.
        prompt: Prompts,
        /// Whether the prompt stands before the completion; with `logprobs`, its log-probabilities are told too.
        echo: bool,
        /// Of how many of the most likely tokens log-probabilities are told, 0 to 20.
        logprobs: u32,
        /// Taken if it is `n`.
        best_of: u32,
    }
    const IGNORED: &'static [&'static str] = Common::IGNORED;
    const ONLY: &'static [&'static [Only]] = &[
        Common::ONLY,
        &[
            Only("suffix", &["\"\""]),
            Only("add_special_tokens", &["true"]),
        ],
    ];
}

impl Generates for CompletionRequest {
    fn asked(self) -> Result<Asked, HttpError> {
        let Prompts(prompts) = self.prompt.unwrap_or_default();
        if prompts.is_empty() {
            return Err(HttpError::invalid(
                Some("prompt"),
                "prompt is missing or empty",
            ));
        }
        let choices = self.common.n.unwrap_or(1);
        if let Some(best_of) = self.best_of
            && best_of != choices
        {
            return Err(HttpError::invalid(
                Some("best_of"),
                format!(
                    "best_of is {best_of} and n is {choices}: choosing among more choices is not supported"
                ),
            ));
        }
        let inputs = prompts.into_iter().map(|prompt| match prompt {
            Prompt::Text(text) => Input::Prompt(text),
            Prompt::Ids(token_ids) => Input::Tokens(v1::TokenInput { token_ids }),
        });
        let mut asked = self.common.asked(Shape::Text, inputs.collect())?;
        asked.set_logprobs(self.logprobs)?;
        asked.reply.echo = self.echo.unwrap_or(false);
        if asked.reply.echo {
            asked.sampling.prompt_logprobs = self.logprobs;
        }
        asked.sampling.max_tokens = asked.sampling.max_tokens.or(Some(DEFAULT_MAX_TOKENS));
        Ok(asked)
    }
}
