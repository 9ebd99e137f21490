//! A chat becomes one rendered text in which user text and template text can be told apart.
//!
//! Must not know of BPE.

use crate::TextError;
use crate::added::{AddedTokens, Control, Segment};
use crate::error::excerpt;
use crate::marks::{Barriers, Marker, Unmarked};
use crate::template::{Template, TemplateMessage};

/// Most messages of one chat.
pub const MAX_MESSAGES: usize = 1_024;
/// Roles a message can have.
pub const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// One turn of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// One of [`ROLES`].
    pub role: String,
    /// The text; never parsed for control tokens.
    pub content: String,
}

/// A compiled chat template and the rule that keeps user text apart.
pub(crate) struct Chat {
    template: Template,
    marker: Marker,
}

impl Chat {
    pub(crate) fn new(
        source: &str,
        bos: &str,
        eos: &str,
        added: &AddedTokens,
    ) -> Result<Self, TextError> {
        Ok(Self {
            template: Template::new(source, bos, eos)?,
            marker: Marker::new(
                added.control_texts(),
                [source, bos, eos].into_iter().chain(ROLES),
            ),
        })
    }

    /// Renders the messages. In the result a control token counts only where no barrier is.
    ///
    /// Rendering happens with marks in the user text ([`crate::marks`]). A template that looks into
    /// the user text may do something else because of them; that shows by comparison with a rendering
    /// without marks, which is then taken if it is as safe: no user text holds a control token, and
    /// the same control tokens come out in the same order. Otherwise the marked one stands.
    pub(crate) fn render(
        &self,
        messages: &[ChatMessage],
        added: &AddedTokens,
        limit: usize,
        now: u64,
    ) -> Result<Unmarked, TextError> {
        check(messages, limit)?;
        let marks = self
            .marker
            .choose(messages.iter().map(|message| message.content.as_str()))?;
        let contents: Vec<_> = messages
            .iter()
            .map(|message| marks.mark(&message.content))
            .collect();
        let marked: Vec<_> = messages
            .iter()
            .zip(&contents)
            .map(|(message, content)| TemplateMessage {
                role: &message.role,
                content,
            })
            .collect();
        let marked = marks.unmark(&self.template.render(&marked, now)?);
        let plain: Vec<_> = messages
            .iter()
            .map(|message| TemplateMessage {
                role: &message.role,
                content: &message.content,
            })
            .collect();
        let plain = self.template.render(&plain, now)?;
        let unmarked = if marked.text != plain && equally_safe(messages, added, &marked, &plain) {
            Unmarked {
                text: plain,
                barriers: Barriers::default(),
            }
        } else {
            marked
        };
        if unmarked.text.len() > limit {
            return Err(TextError::TooLong {
                what: "the rendered chat",
                bytes: unmarked.text.len(),
                limit,
            });
        }
        Ok(unmarked)
    }
}

fn check(messages: &[ChatMessage], limit: usize) -> Result<(), TextError> {
    if messages.is_empty() {
        return Err(TextError::EmptyPrompt);
    }
    if messages.len() > MAX_MESSAGES {
        return Err(TextError::TooMany {
            what: "messages",
            count: messages.len(),
            limit: MAX_MESSAGES,
        });
    }
    if let Some(message) = messages
        .iter()
        .find(|message| !ROLES.contains(&message.role.as_str()))
    {
        return Err(TextError::UnknownRole {
            role: excerpt(&message.role),
        });
    }
    let bytes = messages.iter().fold(0usize, |sum, message| {
        sum.saturating_add(message.content.len())
    });
    if bytes > limit {
        return Err(TextError::TooLong {
            what: "the chat",
            bytes,
            limit,
        });
    }
    Ok(())
}

fn equally_safe(
    messages: &[ChatMessage],
    added: &AddedTokens,
    marked: &Unmarked,
    plain: &str,
) -> bool {
    let controls = |text: &str, control: Control<'_>| -> Vec<Segment> {
        let mut segments = added.split(text, control);
        segments.retain(|segment| matches!(segment, Segment::Token(id) if added.is_control(*id)));
        segments
    };
    let innocent = messages
        .iter()
        .all(|message| controls(&message.content, Control::Anywhere).is_empty());
    innocent
        && controls(&marked.text, Control::Outside(&marked.barriers))
            == controls(plain, Control::Anywhere)
}
