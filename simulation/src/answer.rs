//! What a client must hear, and what it has heard. It must not know how either travels.

use baton_proto::v1;
use baton_sampling::SamplingParams;

use crate::model::Model;
use crate::oracle::{Completion, End};
use crate::scenario::Ask;

/// Longest stop string, in characters.
const STOP_CHARACTERS: u64 = 4;

/// What is right for one choice.
struct Right {
    completion: Completion,
    text: String,
    /// The stop string that ends it.
    stop: String,
}

/// What has come of a choice.
#[derive(Default)]
struct Choice {
    tokens: usize,
    text: String,
    is_finished: bool,
}

/// A request's answer as far as it has come.
pub struct Answer {
    right: Vec<Right>,
    choices: Vec<Choice>,
    /// Strings that the request is to stop at.
    pub stops: Vec<String>,
    /// `Done` has come.
    pub is_done: bool,
    /// Events so far.
    pub events: u32,
}

impl Answer {
    /// To a request, before anything has come.
    pub fn to(model: &Model, ask: &Ask) -> Self {
        let params = SamplingParams {
            temperature: ask.temperature,
            seed: ask.seed,
            choices: ask.choices,
            max_tokens: ask.max_tokens,
            min_tokens: ask.min_tokens,
            frequency_penalty: ask.frequency_penalty,
            stop_token_ids: ask.stop_token_ids.clone(),
            logprobs: ask.logprobs,
            ..SamplingParams::default()
        };
        let completion = |choice| model.oracle.completion(&ask.prompt, &params, choice);
        let stops: Vec<String> = ask
            .stop
            .and_then(|draw| part_of(&told(model, completion(0), &[]).text, draw))
            .into_iter()
            .collect();
        let right = (0..ask.choices).map(|choice| told(model, completion(choice), &stops));
        Self {
            right: right.collect(),
            choices: (0..ask.choices).map(|_| Choice::default()).collect(),
            stops,
            is_done: false,
            events: 0,
        }
    }

    /// In words: what is wrong with a token event.
    pub fn token(&mut self, event: &v1::TokenEvent) -> Option<String> {
        let at = event.choice as usize;
        let (Some(right), Some(choice)) = (self.right.get(at), self.choices.get_mut(at)) else {
            return Some(format!("tokens of choice {at}"));
        };
        let from = choice.tokens;
        if choice.is_finished || event.position as usize != from {
            return Some(format!(
                "choice {at}: position {} where {from} is next",
                event.position
            ));
        }
        choice.tokens += event.token_ids.len();
        choice.text.push_str(&event.text);
        let expected = right.completion.token_ids.get(from..choice.tokens);
        if expected != Some(&event.token_ids) {
            let got = &event.token_ids;
            return Some(format!(
                "choice {at} position {from}: {got:?} instead of {expected:?}"
            ));
        }
        let chosen: Vec<f32> = event.logprobs.iter().map(|some| some.chosen).collect();
        let logprobs = &right.completion.logprobs;
        let expected = logprobs.get(from..choice.tokens).unwrap_or_default();
        (chosen != expected).then(|| {
            format!("choice {at} position {from}: logprobs {chosen:?} instead of {expected:?}")
        })
    }

    /// In words: what is wrong with the end of a choice.
    pub fn finished(&mut self, event: &v1::FinishedEvent) -> Option<String> {
        let at = event.choice as usize;
        let (right, choice) = (self.right.get(at)?, self.choices.get_mut(at)?);
        let reason = match right.completion.end {
            End::Stop => v1::FinishReason::Stop,
            End::Length => v1::FinishReason::Length,
        };
        let again = std::mem::replace(&mut choice.is_finished, true);
        let length = right.completion.token_ids.len();
        let is_right = !again
            && choice.tokens == length
            && choice.text == right.text
            && event.finish_reason() == reason
            && event.stop == right.stop
            && event.completion_tokens as usize == length;
        (!is_right).then(|| {
            format!(
                "{event:?} after {:?} instead of {reason:?} ({:?}) after {length} tokens and {:?}; again: \
                 {again}",
                choice.text, right.stop, right.text
            )
        })
    }

    /// In words: what is wrong with `Done`.
    pub fn done(&mut self) -> Option<String> {
        self.is_done = true;
        let all = self.choices.iter().all(|choice| choice.is_finished);
        (!all).then(|| "Done before every choice has finished".into())
    }
}

/// A completion with its text, cut where a stop string ends it.
fn told(model: &Model, mut completion: Completion, stops: &[String]) -> Right {
    let mut text = String::new();
    let mut stop = String::new();
    // Stop strings are parts of texts, which the detokenizer takes.
    let Ok(mut detokenizer) = model.text.detokenizer(stops) else {
        return Right {
            completion,
            text,
            stop,
        };
    };
    let count = completion.token_ids.len();
    // The id that ends a choice has no text.
    let with_text = count - usize::from(completion.end == End::Stop);
    for at in 0..with_text {
        let delta = detokenizer.push(completion.token_ids[at]);
        text.push_str(&delta.text);
        if let Some(matched) = delta.stopped {
            stop = matched;
            completion.token_ids.truncate(at + 1);
            completion.logprobs.truncate(at + 1);
            completion.end = End::Stop;
            return Right {
                completion,
                text,
                stop,
            };
        }
    }
    text.push_str(&detokenizer.finish());
    Right {
        completion,
        text,
        stop,
    }
}

/// Some characters of a text.
fn part_of(text: &str, draw: u64) -> Option<String> {
    let count = text.chars().count() as u64;
    let from = (draw >> 8).checked_rem(count)?;
    let length = 1 + draw % STOP_CHARACTERS;
    Some(
        text.chars()
            .skip(from as usize)
            .take(length as usize)
            .collect(),
    )
}
