//! The small endpoints: models, tokenizing and its reverse. It must not know generating.

use axum::response::Response;

use super::answer::Call;
use super::chat::{Message, chat_input};
use super::error::HttpError;
use super::fields::{Nested, Only, request};
use super::room::Taken;
use super::routes::{App, json_response};
use super::schema::reply;
use super::values::AtMost;
use super::whole;
use crate::request::Admission;

/// Most ids that are turned into text at once.
const MAX_IDS: usize = 1 << 20;

request! {
    /// A text or a chat to turn into token ids.
    struct TokenizeRequest {
        model: String,
        /// A text; it or `messages`.
        prompt: String,
        /// A chat; it or `prompt`.
        messages: AtMost<Nested<Message>, { baton_text::MAX_MESSAGES }>,
    }
    const ONLY: &'static [&'static [Only]] = &[&[
        Only("add_special_tokens", &["true"]),
        Only("add_generation_prompt", &["true"]),
        Only("return_token_strs", &["false"]),
    ]];
}

request! {
    /// Token ids to turn into text.
    struct DetokenizeRequest {
        model: String,
        tokens: AtMost<u32, MAX_IDS>,
    }
}

reply! {
    /// Token ids of a text or chat.
    struct Tokenized {
        count: u32,
        max_model_len: u32,
        tokens: Vec<u32>,
    }
}

reply! {
    /// Text of token ids.
    struct Detokenized {
        prompt: String,
    }
}

reply! {
    /// The models that are served.
    struct ModelList {
        object: &'static str,
        data: Vec<ModelCard>,
    }
}

reply! {
    /// A model.
    struct ModelCard {
        id: String,
        object: &'static str,
        created: u64,
        owned_by: &'static str,
        max_model_len: u32,
    }
}

impl App {
    /// Models that a complete set of workers serves.
    pub(super) fn models(&self) -> Response {
        let data = if self.shared.directory.is_ready() {
            vec![self.card()]
        } else {
            Vec::new()
        };
        json_response(&ModelList {
            object: "list",
            data,
        })
    }

    /// One model, by name.
    pub(super) fn model(&self, name: &str) -> Result<Response, HttpError> {
        Admission::new(&self.shared, None).check_model(name)?;
        if !self.shared.directory.is_ready() {
            let words = format!("no worker serves {name} now");
            return Err(HttpError::unavailable(words));
        }
        Ok(json_response(&self.card()))
    }

    fn card(&self) -> ModelCard {
        ModelCard {
            id: self.shared.model.name().to_owned(),
            object: "model",
            created: self.started,
            owned_by: "baton",
            max_model_len: self.shared.model.context_length,
        }
    }

    pub(super) async fn tokenize(
        &self,
        call: Call,
        request: TokenizeRequest,
        taken: Taken,
    ) -> Result<Response, HttpError> {
        let admission = Admission::new(&self.shared, call.time_given);
        admission.check_model(&request.model.unwrap_or_default())?;
        let tokens = match (request.prompt, request.messages) {
            (Some(text), None) => admission.tokenize_prompt(text).await?,
            (None, Some(messages)) => {
                let chat = chat_input(Some(messages))?;
                admission.tokenize_chat(chat).await?
            }
            _ => {
                let words = "one of prompt and messages is needed";
                return Err(HttpError::invalid(Some("prompt"), words));
            }
        };
        let tokenized = Tokenized {
            count: tokens.len() as u32,
            max_model_len: self.shared.model.context_length,
            tokens,
        };
        whole::json(&tokenized, call, taken)
    }

    pub(super) async fn detokenize(
        &self,
        call: Call,
        request: DetokenizeRequest,
        taken: Taken,
    ) -> Result<Response, HttpError> {
        let model = request.model.unwrap_or_default();
        let AtMost(ids) = request.tokens.unwrap_or_default();
        let prompt = Admission::new(&self.shared, call.time_given)
            .detokenize(&model, ids, false)
            .await?;
        whole::json(&Detokenized { prompt }, call, taken)
    }
}
