//! A whole answer at once. It must not know streams of bytes.

use super::error::HttpError;
use super::events::Events;
use super::generate::Shape;
use super::logprobs::{Token, chat, size, text};
use super::pieces::{Head, Pieces};
use super::replies::{AssistantMessage, ChatChoice, ChatCompletion, TextChoice, TextCompletion};
use super::room::Kept;
use crate::error::RequestError;

/// One choice.
#[derive(Default)]
struct Choice {
    text: String,
    tokens: Vec<Token>,
    finish: Option<&'static str>,
}

/// Waits for everything, and writes it down; what it keeps goes with it.
pub(super) async fn collect(
    mut events: Events,
    mut pieces: Pieces,
) -> Result<(Vec<u8>, Kept), HttpError> {
    let mut choices = Vec::new();
    choices.resize_with(pieces.choices(), Choice::default);
    while let Some(item) = events.next().await {
        let (prompt, event) = item?;
        let Some(piece) = pieces.take(prompt, event)? else {
            continue;
        };
        pieces.kept.add(piece.text.len() + size(&piece.tokens))?;
        if let Some(choice) = choices.get_mut(piece.index) {
            choice.text.push_str(&piece.text);
            choice.tokens.extend(piece.tokens);
            choice.finish = piece.finish.or(choice.finish);
        }
    }
    if !pieces.is_complete() {
        return Err(RequestError::Internal.into());
    }
    let written = match pieces.head.reply.shape {
        Shape::Chat => serde_json::to_vec(&chat_completion(&pieces, choices)),
        Shape::Text => serde_json::to_vec(&text_completion(&pieces, choices)),
    };
    let written = written.map_err(|_| RequestError::Internal)?;
    pieces.kept.set(written.len())?;
    Ok((written, pieces.kept))
}

fn chat_completion(pieces: &Pieces, choices: Vec<Choice>) -> ChatCompletion {
    let head = &pieces.head;
    let choice = |(index, choice): (u32, Choice)| ChatChoice {
        index,
        message: AssistantMessage {
            role: "assistant",
            content: choice.text,
        },
        logprobs: head.reply.logprobs.then(|| chat(choice.tokens)),
        finish_reason: choice.finish,
    };
    ChatCompletion {
        id: head.id.clone(),
        object: "chat.completion",
        created: head.created,
        model: head.model.clone(),
        choices: (0..).zip(choices).map(choice).collect(),
        usage: pieces.usage(),
        receipts: pieces.receipts(),
    }
}

fn text_completion(pieces: &Pieces, choices: Vec<Choice>) -> TextCompletion {
    let choice = |(index, choice): (u32, Choice)| TextChoice {
        index,
        text: choice.text,
        logprobs: (pieces.head.reply.logprobs).then(|| text(choice.tokens, &mut 0)),
        finish_reason: choice.finish,
    };
    TextCompletion {
        usage: Some(Some(pieces.usage())),
        receipts: pieces.receipts(),
        ..text_head(&pieces.head, (0..).zip(choices).map(choice).collect())
    }
}

/// A text completion with these choices and nothing more.
pub(super) fn text_head(head: &Head, choices: Vec<TextChoice>) -> TextCompletion {
    TextCompletion {
        id: head.id.clone(),
        object: "text_completion",
        created: head.created,
        model: head.model.clone(),
        choices,
        usage: None,
        receipts: None,
    }
}
