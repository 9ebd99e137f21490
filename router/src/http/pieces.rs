//! From the events of a request's prompts to pieces of its numbered choices, streamed or collected alike.
//! It must not know how they are written.

use std::sync::Arc;

use baton_proto::v1;
use baton_proto::v1::generate_response::Event;
use baton_text::TextModel;

use super::error::HttpError;
use super::generate::Reply;
use super::logprobs::{Token, size};
use super::replies::{Receipt, Usage};
use super::room::Kept;

/// What is known of an answer before its first event.
pub(super) struct Head {
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) reply: Reply,
    pub(super) text: Arc<TextModel>,
    pub(super) prompts: Vec<PromptHead>,
}

/// One of its prompts.
pub(super) struct PromptHead {
    pub(super) ids: Arc<[u32]>,
    /// Its text, if it stands before the completion.
    pub(super) echo: Option<String>,
}

/// What follows in one choice.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// Prompt × n + choice.
    pub(super) index: usize,
    pub(super) text: String,
    /// If log-probabilities are told.
    pub(super) tokens: Vec<Token>,
    pub(super) finish: Option<&'static str>,
}

/// The answer so far.
pub(super) struct Pieces {
    pub(super) head: Head,
    /// What is kept of it.
    pub(super) kept: Kept,
    /// Tokens of each prompt with log-probabilities, if they are told, until its last choice has begun.
    prompt_tokens: Vec<Vec<Token>>,
    /// Whether each choice has begun.
    begun: Vec<bool>,
    completion_tokens: u32,
    cached_tokens: u32,
    receipts: Vec<Option<Receipt>>,
}

impl Pieces {
    pub(super) fn new(head: Head, kept: Kept) -> Self {
        let echoed = head.reply.echo && head.reply.logprobs;
        let first = |prompt: &PromptHead| match prompt.ids.first() {
            Some(&id) if echoed => vec![Token::new(id, None, &head.text)],
            _ => Vec::new(),
        };
        Self {
            prompt_tokens: head.prompts.iter().map(first).collect(),
            begun: vec![false; head.prompts.len() * head.reply.choices as usize],
            completion_tokens: 0,
            cached_tokens: 0,
            receipts: head.prompts.iter().map(|_| None).collect(),
            kept,
            head,
        }
    }

    /// Number of choices.
    pub(super) fn choices(&self) -> usize {
        self.begun.len()
    }

    /// Takes an event of a prompt; what clients see of it.
    ///
    /// # Errors
    /// There is too much to be kept.
    pub(super) fn take(&mut self, prompt: usize, event: Event) -> Result<Option<Piece>, HttpError> {
        Ok(match event {
            Event::Prompt(told) => {
                self.prompt(prompt, told)?;
                None
            }
            Event::Token(told) => self.token(prompt, told),
            Event::Finished(told) => Some(Piece {
                index: self.index(prompt, told.choice),
                finish: Some(match told.finish_reason() {
                    v1::FinishReason::Length => "length",
                    _ => "stop",
                }),
                ..Piece::default()
            }),
            Event::Done(told) => {
                self.done(prompt, told);
                None
            }
        })
    }

    fn done(&mut self, prompt: usize, told: v1::DoneEvent) {
        let usage = told.usage.unwrap_or_default();
        self.cached_tokens += usage.cached_tokens;
        if let Some(receipt) = self.receipts.get_mut(prompt) {
            *receipt = Some(told.receipt.unwrap_or_default().into());
        }
    }

    fn prompt(&mut self, prompt: usize, told: v1::PromptEvent) -> Result<(), HttpError> {
        let tokens = told.token_ids.into_iter().zip(told.logprobs);
        let text = &self.head.text;
        let tokens = tokens.map(|(id, told)| Token::new(id, Some(told), text));
        let tokens: Vec<Token> = tokens.collect();
        self.kept.add(size(&tokens))?;
        if let Some(all) = self.prompt_tokens.get_mut(prompt) {
            all.extend(tokens);
        }
        Ok(())
    }

    fn token(&mut self, prompt: usize, told: v1::TokenEvent) -> Option<Piece> {
        let index = self.index(prompt, told.choice);
        self.completion_tokens += told.token_ids.len() as u32;
        let mut piece = Piece {
            index,
            ..Piece::default()
        };
        let begun = self.begun.get_mut(index)?;
        if !std::mem::replace(begun, true) {
            let echo = self.head.prompts.get(prompt)?.echo.as_deref();
            echo.unwrap_or_default().clone_into(&mut piece.text);
            piece.tokens = self.tokens_of(prompt);
        }
        piece.text.push_str(&told.text);
        if self.head.reply.logprobs {
            let tokens = told.token_ids.into_iter().zip(told.logprobs);
            let text = &self.head.text;
            let tokens = tokens.map(|(id, told)| Token::new(id, Some(told), text));
            piece.tokens.extend(tokens);
        }
        // Text that may still become part of a character or of a stop string comes with a later token.
        (!piece.text.is_empty() || !piece.tokens.is_empty()).then_some(piece)
    }

    /// Tokens of a prompt, for a choice that begins; the last one to do so has them for itself.
    fn tokens_of(&mut self, prompt: usize) -> Vec<Token> {
        let choices = self.index(prompt, 0)..self.index(prompt + 1, 0);
        let all_begun =
            (self.begun.get(choices)).is_none_or(|some| some.iter().all(|begun| *begun));
        let Some(tokens) = self.prompt_tokens.get_mut(prompt) else {
            return Vec::new();
        };
        if !all_begun {
            return tokens.clone();
        }
        self.kept.give_back(size(tokens));
        std::mem::take(tokens)
    }

    fn index(&self, prompt: usize, choice: u32) -> usize {
        prompt * self.head.reply.choices as usize + choice as usize
    }

    /// Whether every prompt has been answered to its end.
    pub(super) fn is_complete(&self) -> bool {
        self.receipts.iter().all(Option::is_some)
    }

    /// Tokens so far.
    pub(super) fn usage(&self) -> Usage {
        let prompts = self.head.prompts.iter();
        let prompt_tokens: usize = prompts.map(|prompt| prompt.ids.len()).sum();
        Usage::new(
            prompt_tokens as u32,
            self.completion_tokens,
            self.cached_tokens,
        )
    }

    /// What happened, if the client wants to know.
    pub(super) fn receipts(&self) -> Option<Vec<Receipt>> {
        (self.head.reply.receipt).then(|| self.receipts.iter().flatten().cloned().collect())
    }
}
