//! Log-probabilities of the prompt as the client gets to see them: by position, each once, before any
//! token.
//!
//! They may come twice (an attempt repeated by another worker). It must not know who computed them.

use std::sync::Arc;

use baton_proto::domain::PromptLogprobs;
use baton_proto::v1;
use baton_proto::v1::generate_response::Event;
use baton_sampling::TokenLogprobs;
use baton_text::TextModel;

use crate::model::ServedModel;

/// An event is complete once it is this long: far below the limit of a message.
const EVENT_BYTES: usize = 256 << 10;
/// More than a number, an id and the lengths of an alternative take.
const ALTERNATIVE_BYTES: usize = 32;

/// What a request's client has seen of its prompt.
pub(super) struct PromptOutput {
    model: ServedModel,
    prompt_ids: Arc<[u32]>,
    /// Alternatives per token, if log-probabilities are asked for.
    asked: Option<u32>,
    /// Prompt index that comes next.
    next: usize,
}

impl PromptOutput {
    /// Nothing has been sent yet.
    pub(super) fn new(model: &ServedModel, prompt_ids: &Arc<[u32]>, asked: Option<u32>) -> Self {
        Self {
            model: model.clone(),
            prompt_ids: Arc::clone(prompt_ids),
            asked,
            next: 1,
        }
    }

    /// Whether the client has been told anything.
    pub(super) fn has_begun(&self) -> bool {
        self.next > 1
    }

    /// Whether nothing is owed any more; only then may tokens follow.
    pub(super) fn is_complete(&self) -> bool {
        self.asked.is_none() || self.next >= self.prompt_ids.len()
    }

    /// Takes what a worker tells; what has been sent already is dropped.
    ///
    /// # Errors
    /// In words: what the worker did that cannot be right.
    pub(super) fn take(&mut self, told: &PromptLogprobs) -> Result<Vec<Event>, String> {
        let (from, length) = (told.position as usize, self.prompt_ids.len());
        let end = from.saturating_add(told.entries.len());
        let Some(most) = self.asked else {
            return Err("log-probabilities of a prompt that were not asked for".into());
        };
        if from > self.next || end > length {
            return Err(format!(
                "log-probabilities of prompt tokens {from} to {end} of {length} instead of {} on",
                self.next
            ));
        }
        for entry in &told.entries {
            if entry.top.len() > most as usize {
                return Err(format!(
                    "{} alternatives of a prompt token, {most} asked for",
                    entry.top.len()
                ));
            }
            let vocabulary = self.model.vocabulary;
            if let Some((id, _)) = entry.top.iter().find(|(id, _)| *id >= vocabulary) {
                return Err(format!("token id {id} of {vocabulary}"));
            }
        }
        let known = self.next - from;
        let fresh = told.entries.get(known..).unwrap_or_default();
        let events = self.events(fresh);
        self.next += fresh.len();
        Ok(events)
    }

    /// Events of the entries that come next.
    fn events(&self, entries: &[TokenLogprobs]) -> Vec<Event> {
        let mut events = Vec::new();
        let mut event = v1::PromptEvent::default();
        let mut bytes = 0;
        for (at, entry) in (self.next..).zip(entries) {
            if event.token_ids.is_empty() {
                event.position = at as u32;
            }
            let entry = described(entry, &self.model.text);
            bytes += size(&entry);
            event.token_ids.push(self.prompt_ids[at]);
            event.logprobs.push(entry);
            if bytes >= EVENT_BYTES {
                events.push(Event::Prompt(std::mem::take(&mut event)));
                bytes = 0;
            }
        }
        if !event.token_ids.is_empty() {
            events.push(Event::Prompt(event));
        }
        events
    }
}

/// Log-probabilities with the texts and bytes of their tokens.
pub(super) fn described(logprobs: &TokenLogprobs, text: &TextModel) -> v1::TokenLogprobs {
    let mut wire = v1::TokenLogprobs::from(logprobs);
    for entry in &mut wire.top {
        entry.text_bytes = text.token_bytes(entry.token_id).unwrap_or_default();
        entry.text = String::from_utf8_lossy(&entry.text_bytes).into_owned();
    }
    wire
}

/// About how long an entry is on the wire, at least.
fn size(entry: &v1::TokenLogprobs) -> usize {
    let of = |top: &v1::AlternativeToken| ALTERNATIVE_BYTES + top.text.len() + top.text_bytes.len();
    ALTERNATIVE_BYTES + entry.top.iter().map(of).sum::<usize>()
}
