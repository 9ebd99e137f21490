//! What the client gets to see: the prompt's log-probabilities if it asked, then per choice tokens strictly
//! by position, their text, and the end.
//!
//! Tokens may come twice (an attempt repeated by another worker); each position goes out once. It
//! must not know who generated a token.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_proto::domain::{Completion, FinishReason, GeneratedToken, PromptLogprobs};
use baton_proto::v1;
use baton_proto::v1::generate_response::Event;
use baton_text::{Detokenizer, TextError, TextModel};
use tokio::time::Instant;

use super::prompt::{PromptOutput, described};
use crate::counters::Counters;
use crate::legs::LegRequest;
use crate::metrics::Timings;
use crate::model::ServedModel;
use crate::recent::{Pace, Record};
use crate::shared::Shared;

/// All choices of one request.
pub(super) struct Output {
    model: ServedModel,
    counters: Arc<Counters>,
    record: Arc<Record>,
    pace: Pace,
    timings: Arc<Timings>,
    prompt_tokens: u64,
    max_tokens: u32,
    prompt: PromptOutput,
    choices: Vec<Choice>,
    first_at: Option<Instant>,
    longest_gap: Duration,
}

struct Choice {
    detokenizer: Detokenizer,
    tokens: Vec<u32>,
    last_at: Option<Instant>,
    ended: bool,
    /// Ended by a stop string: only the router knows.
    stopped: bool,
}

/// How a token came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Its worker has just generated it.
    Generated,
    /// A decode worker repeats what the hand-off carried; usually it has been sent already.
    Echoed,
}

/// What one token gave.
#[derive(Debug, Default)]
pub(super) struct Emitted {
    pub(super) events: Vec<Event>,
    /// A stop string has matched: the worker must be told.
    pub(super) stopped: bool,
}

impl Output {
    pub(super) fn new(
        shared: &Shared,
        record: &Arc<Record>,
        request: &LegRequest,
        stops: &[String],
    ) -> Result<Self, TextError> {
        let model = &shared.model;
        let choice = |_| {
            let detokenizer = model.text.detokenizer(stops)?;
            let tokens = Vec::new();
            Ok(Choice {
                detokenizer,
                tokens,
                last_at: None,
                ended: false,
                stopped: false,
            })
        };
        let params = &request.params;
        Ok(Self {
            model: model.clone(),
            counters: Arc::clone(&shared.counters),
            record: Arc::clone(record),
            pace: shared.recent.pace(),
            timings: Arc::clone(&shared.timings),
            prompt_tokens: request.prompt_ids.len() as u64,
            max_tokens: params.max_tokens,
            prompt: PromptOutput::new(model, &request.prompt_ids, params.prompt_logprobs),
            choices: (0..params.choices)
                .map(choice)
                .collect::<Result<_, TextError>>()?,
            first_at: None,
            longest_gap: Duration::ZERO,
        })
    }

    /// Takes log-probabilities of the prompt from a worker.
    ///
    /// # Errors
    /// In words: what the worker did that cannot be right.
    pub(super) fn take_prompt(&mut self, told: &PromptLogprobs) -> Result<Vec<Event>, String> {
        self.prompt.take(told)
    }

    /// Whether the client has been told anything.
    pub(super) fn has_begun(&self) -> bool {
        self.tokens() > 0 || self.prompt.has_begun()
    }

    /// Whether all that was asked of the prompt has been taken.
    pub(super) fn prompt_is_told(&self) -> bool {
        self.prompt.is_complete()
    }

    /// Takes a token from a worker.
    ///
    /// # Errors
    /// In words: what the worker did that cannot be right.
    pub(super) fn take(&mut self, token: &GeneratedToken, from: Source) -> Result<Emitted, String> {
        if !self.prompt.is_complete() {
            return Err("a token before the prompt's log-probabilities".into());
        }
        let choices = self.choices.len();
        let Some(choice) = self.choices.get_mut(token.choice as usize) else {
            return Err(format!("a token of choice {} of {choices}", token.choice));
        };
        if token.token_id >= self.model.vocabulary {
            return Err(format!(
                "token id {} of {}",
                token.token_id, self.model.vocabulary
            ));
        }
        let next = choice.tokens.len();
        let position = token.position as usize;
        if choice.ended || position < next {
            if from == Source::Generated {
                Counters::add(&self.counters.tokens_dropped);
            }
            if choice
                .tokens
                .get(position)
                .is_some_and(|&sent| sent != token.token_id)
            {
                Counters::add(&self.counters.tokens_contradicted);
                tracing::error!(
                    choice = token.choice,
                    position,
                    "a repeated token is another one"
                );
            }
            return Ok(Emitted::default());
        }
        if position > next {
            return Err(format!(
                "position {position} of choice {} instead of {next}",
                token.choice
            ));
        }
        let now = Instant::now();
        if self.first_at.is_none() {
            self.first_at = Some(now);
            let ttft = self.record.age(now);
            self.pace.first(now, ttft);
            self.timings.ttft.record(ttft);
            let prompt_tokens = &self.counters.prompt_tokens;
            prompt_tokens.fetch_add(self.prompt_tokens, Ordering::Relaxed);
        }
        let gap = choice.last_at.replace(now).map(|last| now - last);
        if let Some(gap) = gap {
            self.longest_gap = self.longest_gap.max(gap);
            self.timings.itl.record(gap);
        }
        self.pace.token(now, gap);
        self.counters.tokens_emitted.fetch_add(1, Ordering::Relaxed);
        let emitted = choice.take(token, self.max_tokens, &self.model.text);
        self.record.token(self.tokens());
        Ok(emitted)
    }

    pub(super) fn all_ended(&self) -> bool {
        self.choices.iter().all(|choice| choice.ended)
    }

    /// Choices that a stop string has ended.
    pub(super) fn stopped(&self) -> impl Iterator<Item = u32> + '_ {
        (0..)
            .zip(&self.choices)
            .filter_map(|(at, choice)| choice.stopped.then_some(at))
    }

    /// Tokens of all choices so far.
    pub(super) fn tokens(&self) -> u64 {
        self.choices
            .iter()
            .map(|choice| choice.tokens.len() as u64)
            .sum()
    }

    /// Tokens of the longest choice.
    pub(super) fn longest(&self) -> u64 {
        self.choices
            .iter()
            .map(|choice| choice.tokens.len() as u64)
            .max()
            .unwrap_or(0)
    }

    /// Completions, in the order of the choices.
    pub(super) fn completions(&self) -> impl Iterator<Item = &[u32]> {
        self.choices.iter().map(|choice| choice.tokens.as_slice())
    }

    /// Where each choice stands, for the workers that go on from there.
    pub(super) fn so_far(&self) -> Vec<Completion> {
        let so_far = |choice: &Choice| Completion {
            token_ids: choice.tokens.clone(),
            ended: choice.ended,
        };
        self.choices.iter().map(so_far).collect()
    }

    pub(super) fn first_at(&self) -> Option<Instant> {
        self.first_at
    }

    /// Longest time between two tokens of one choice.
    pub(super) fn longest_gap(&self) -> Duration {
        self.longest_gap
    }
}

impl Choice {
    fn take(&mut self, token: &GeneratedToken, max_tokens: u32, text: &TextModel) -> Emitted {
        self.tokens.push(token.token_id);
        let mut shown = String::new();
        let mut stop = String::new();
        let mut finish = token.finish;
        // The id that ends a choice has no text.
        if finish != Some(FinishReason::Stop) {
            let delta = self.detokenizer.push(token.token_id);
            shown = delta.text;
            if let Some(matched) = delta.stopped {
                (stop, finish, self.stopped) = (matched, Some(FinishReason::Stop), true);
            } else if self.tokens.len() >= max_tokens as usize {
                finish = finish.or(Some(FinishReason::Length));
            }
        }
        if finish.is_some() && !self.stopped {
            shown.push_str(&self.detokenizer.finish());
        }
        self.ended = finish.is_some();
        let mut events = vec![Event::Token(v1::TokenEvent {
            choice: token.choice,
            token_ids: vec![token.token_id],
            text: shown,
            logprobs: token
                .logprobs
                .iter()
                .map(|logprobs| described(logprobs, text))
                .collect(),
            position: token.position,
        })];
        if let Some(reason) = finish {
            events.push(Event::Finished(v1::FinishedEvent {
                choice: token.choice,
                finish_reason: v1::FinishReason::from(reason).into(),
                stop,
                completion_tokens: self.tokens.len() as u32,
            }));
        }
        Emitted {
            events,
            stopped: self.stopped,
        }
    }
}
