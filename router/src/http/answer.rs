//! From what a client means to its answer. It must not know how either is spelled.

use std::time::{Duration, SystemTime};

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use baton_proto::v1::generate_request::Input;
use rand::Rng as _;

use super::collect::collect;
use super::error::HttpError;
use super::events::Events;
use super::generate::{Asked, Reply, Shape};
use super::pieces::{Head, Pieces, PromptHead};
use super::room::{Kept, Taken};
use super::routes::App;
use super::{sse, whole};
use crate::error::RequestError;
use crate::request::{Ending, is_harmless};
use crate::services::{Asker, Begun, begin};

/// The label of a request, given and given back.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What is known about a call besides its body.
pub(super) struct Call {
    pub(super) asker: Asker,
    /// From its header.
    pub(super) label: Option<String>,
    pub(super) time_given: Option<Duration>,
}

impl App {
    /// Generates from a body that has taken this much room; the answer ends with the request, and dropping it cancels.
    pub(super) async fn generate(
        &self,
        call: Call,
        mut asked: Asked,
        taken: Taken,
        ending: &mut Option<Ending>,
    ) -> Result<Response, HttpError> {
        if let Some(label) = call.label {
            asked.label = label;
        }
        // Whatever clients call their requests, this is the name of the answer.
        let own_id = format!("{:032x}", rand::rng().random::<u128>());
        if asked.label.is_empty() || !is_harmless(&asked.label) {
            asked.label.clone_from(&own_id);
        }
        let label = asked.label.clone();
        let texts: Vec<Option<String>> = (asked.inputs.iter())
            .map(|input| match input {
                Input::Prompt(text) if asked.reply.echo => Some(text.clone()),
                _ => None,
            })
            .collect();
        let (requests, reply) = asked.requests();
        let begun = begin(&self.shared, call.asker, call.time_given, requests, ending).await?;
        let head = self.head(&own_id, reply, texts, &begun)?;
        // What is left of the body is token ids and what is repeated.
        let mut kept = Kept::new(taken);
        let echoes = head.prompts.iter().flat_map(|prompt| &prompt.echo);
        kept.set(echoes.map(String::len).sum())?;
        let responses = begun.into_iter().map(|begun| begun.responses);
        let events = Events::begin(responses).await?;
        let pieces = Pieces::new(head, kept);
        let mut response = if pieces.head.reply.stream.is_some() {
            let kind = HeaderValue::from_static("text/event-stream");
            let mut response = Response::new(sse::body(events, pieces));
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        } else {
            let (whole, kept) = collect(events, pieces).await?;
            whole::json_bytes(whole, kept)
        };
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Ok(label) = HeaderValue::from_str(&label) {
            headers.insert(REQUEST_ID, label);
        }
        Ok(response)
    }

    fn head(
        &self,
        id: &str,
        reply: Reply,
        texts: Vec<Option<String>>,
        begun: &[Begun],
    ) -> Result<Head, HttpError> {
        let model = &self.shared.model;
        let kind = match reply.shape {
            Shape::Chat => "chatcmpl",
            Shape::Text => "cmpl",
        };
        let mut prompts = Vec::with_capacity(begun.len());
        for (begun, given) in begun.iter().zip(texts) {
            let echo = match given {
                None if reply.echo => {
                    let text = model.text.decode(&begun.prompt_ids, true);
                    Some(text.map_err(RequestError::from)?)
                }
                given => given,
            };
            prompts.push(PromptHead {
                ids: begun.prompt_ids.clone(),
                echo,
            });
        }
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Ok(Head {
            id: format!("{kind}-{id}"),
            created: since.as_secs(),
            model: model.name().to_owned(),
            reply,
            text: model.text.clone(),
            prompts,
        })
    }
}
