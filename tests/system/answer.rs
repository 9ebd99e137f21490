//! What one request got, checked for order while it is taken in.

use std::collections::BTreeMap;

use baton_proto::v1::generate_response::Event;
use baton_proto::v1::{FinishReason, GenerateResponse, Receipt, Usage};

/// Everything one request got.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// Of the prompt's tokens from the second on.
    pub(crate) prompt: Prompt,
    /// By choice.
    pub(crate) choices: BTreeMap<u32, Choice>,
    pub(crate) usage: Usage,
    pub(crate) receipt: Option<Receipt>,
}

/// What was said of the prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Prompt {
    pub(crate) token_ids: Vec<u32>,
    /// Log-probabilities of these tokens, as bits.
    pub(crate) logprobs: Vec<u32>,
    /// Id and log-probability (as bits) of the most likely tokens, position after position.
    pub(crate) top: Vec<(u32, u32)>,
}

/// What one choice got.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Choice {
    pub(crate) token_ids: Vec<u32>,
    pub(crate) text: String,
    /// Log-probabilities of the chosen tokens, as bits.
    pub(crate) logprobs: Vec<u32>,
    /// Id and log-probability (as bits) of the most likely tokens, position after position.
    pub(crate) top: Vec<(u32, u32)>,
    pub(crate) finish: Option<FinishReason>,
    /// The stop string that matched.
    pub(crate) stop: String,
}

impl Answer {
    /// Takes the next event of a stream.
    pub(crate) fn take(&mut self, response: GenerateResponse) {
        assert!(self.receipt.is_none(), "an event after the final one");
        match response.event.expect("every response has an event") {
            Event::Prompt(event) => {
                assert!(self.choices.is_empty(), "the prompt comes first");
                let (at, prompt) = (event.position as usize, &mut self.prompt);
                assert_eq!(at, prompt.token_ids.len() + 1, "missing or repeated");
                assert_eq!(event.token_ids.len(), event.logprobs.len());
                prompt.token_ids.extend(event.token_ids);
                for entry in &event.logprobs {
                    prompt.logprobs.push(entry.chosen.to_bits());
                    let top = entry.top.iter();
                    prompt
                        .top
                        .extend(top.map(|one| (one.token_id, one.logprob.to_bits())));
                }
            }
            Event::Token(token) => {
                let choice = self.choices.entry(token.choice).or_default();
                assert!(
                    choice.finish.is_none(),
                    "a token after the choice has finished: {token:?}"
                );
                assert_eq!(
                    token.position as usize,
                    choice.token_ids.len(),
                    "a position is missing or repeated"
                );
                choice.token_ids.extend(token.token_ids);
                choice.text.push_str(&token.text);
                for entry in &token.logprobs {
                    choice.logprobs.push(entry.chosen.to_bits());
                    let top = entry.top.iter();
                    choice
                        .top
                        .extend(top.map(|one| (one.token_id, one.logprob.to_bits())));
                }
            }
            Event::Finished(finished) => {
                let choice = self.choices.entry(finished.choice).or_default();
                assert!(choice.finish.is_none(), "a choice finished twice");
                choice.finish = Some(finished.finish_reason());
                choice.stop.clone_from(&finished.stop);
                assert_eq!(
                    finished.completion_tokens as usize,
                    choice.token_ids.len(),
                    "tokens sent and tokens counted"
                );
            }
            Event::Done(done) => {
                assert!(self.choices.values().all(|choice| choice.finish.is_some()));
                self.usage = done.usage.expect("usage");
                let sent: usize = self.choices.values().map(|c| c.token_ids.len()).sum();
                assert_eq!(
                    self.usage.completion_tokens as usize, sent,
                    "tokens sent and tokens used"
                );
                self.receipt = Some(done.receipt.expect("receipt"));
            }
        }
    }

    /// What must not change, whatever runs where: every choice, what is said of the prompt, and what is
    /// counted (not what was cached).
    pub(crate) fn essence(&self) -> Essence {
        (
            self.choices.values().cloned().collect(),
            self.prompt.clone(),
            self.usage.prompt_tokens,
            self.usage.completion_tokens,
        )
    }

    /// Token ids of choice 0.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.choices[&0].token_ids
    }

    /// Text of choice 0.
    pub(crate) fn text(&self) -> &str {
        &self.choices[&0].text
    }

    /// The receipt.
    pub(crate) fn receipt(&self) -> &Receipt {
        self.receipt
            .as_ref()
            .expect("a finished answer has a receipt")
    }

    /// Names of the last attempt's prefill and decode workers.
    pub(crate) fn workers(&self) -> (&str, &str) {
        let attempt = self.receipt().attempts.last().expect("an attempt");
        (&attempt.prefill_worker, &attempt.decode_worker)
    }
}

/// Choices, prompt, prompt tokens and completion tokens.
pub(crate) type Essence = (Vec<Choice>, Prompt, u32, u32);
