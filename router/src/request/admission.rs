//! Admission: a client's message becomes token ids and parameters with every default fixed, then
//! waits for a place.
//!
//! It must not know workers beyond what their pools can hold.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_cluster::http2::MAX_MESSAGE_BYTES;
use baton_proto::limits::MAX_CACHE_SALT_BYTES;
use baton_proto::v1;
use baton_proto::v1::generate_request::Input;
use baton_proto::{AdmissionDefaults, ConvertError, sampling_from_wire, stop_strings_from_wire};
use baton_sampling::SamplingParams;
use baton_text::ChatMessage;
use rand::Rng as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::trace::RequestTrace;
use crate::clients::ClientPlace;
use crate::error::RequestError;
use crate::legs::LegRequest;
use crate::recent::{Api, Entry, NewRecord};
use crate::shared::Shared;
use crate::workers::Wanted;

/// Longest label of a client.
const MAX_LABEL_BYTES: usize = 128;

/// Seeds that are drawn here are numbers that JavaScript, and every other reader of JSON as doubles, keeps exactly.
const MAX_DRAWN_SEED: u64 = (1 << 53) - 1;

/// A request that may run.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(super) prepared: Prepared,
    pub(super) place: OwnedSemaphorePermit,
}

/// A request that lacks nothing but its place.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(super) client: ClientPlace,
    pub(super) received: Instant,
    pub(super) label: String,
    pub(super) stops: Vec<String>,
    pub(super) request: LegRequest,
    pub(super) wanted: Wanted,
    pub(super) entry: Entry,
    pub(super) trace: RequestTrace,
}

impl Prepared {
    /// Ids of its prompt.
    pub(crate) fn prompt_ids(&self) -> &Arc<[u32]> {
        &self.request.prompt_ids
    }

    /// Takes its place.
    pub(crate) fn admit(mut self, place: OwnedSemaphorePermit) -> Admitted {
        self.entry.record().admitted();
        self.trace.admitted();
        let prepared = self;
        Admitted { prepared, place }
    }

    /// It does not get a place.
    pub(crate) fn refused(mut self, error: &RequestError) {
        self.trace.fail(error);
        self.entry.why(error);
        self.entry.end(error.code());
    }
}

/// The door.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    shared: &'a Shared,
    received: Instant,
    deadline: Instant,
}

impl<'a> Admission<'a> {
    /// `time_given` is the client's own deadline; the longest one allowed stands in for it.
    pub(crate) fn new(shared: &'a Shared, time_given: Option<Duration>) -> Self {
        let received = Instant::now();
        let longest = shared.config.max_deadline;
        let deadline = received + time_given.unwrap_or(longest).min(longest);
        Self {
            shared,
            received,
            deadline,
        }
    }

    /// Validates and tokenizes.
    pub(crate) async fn prepare(
        &self,
        request: v1::GenerateRequest,
        api: Api,
        client: ClientPlace,
        mut trace: RequestTrace,
    ) -> Result<Prepared, RequestError> {
        match self.try_prepare(request, api, client, &mut trace).await {
            Ok(prepare) => Ok(prepare(trace)),
            Err(error) => {
                trace.fail(&error);
                Err(error)
            }
        }
    }

    async fn try_prepare(
        &self,
        request: v1::GenerateRequest,
        api: Api,
        client: ClientPlace,
        trace: &mut RequestTrace,
    ) -> Result<impl FnOnce(RequestTrace) -> Prepared + use<>, RequestError> {
        let shared = self.shared;
        self.check_model(&request.model)?;
        if request.cache_salt.len() > MAX_CACHE_SALT_BYTES {
            return Err(ConvertError::TooLong {
                field: "cache_salt",
                unit: "bytes",
                got: request.cache_salt.len(),
                limit: MAX_CACHE_SALT_BYTES,
            }
            .into());
        }
        let request_id = format!("{:032x}", rand::rng().random::<u128>());
        let label = label(request.request_label, &request_id);
        let options = request.sampling.unwrap_or_default();
        let stops = stop_strings_from_wire(&options)?;
        let most = shared.model.context_length - 1;
        let defaults = AdmissionDefaults {
            seed: rand::rng().random_range(0..=MAX_DRAWN_SEED),
            max_tokens: shared.config.default_max_tokens.min(most),
        };
        let params = sampling_from_wire(&options, defaults, shared.model.vocabulary)?;
        let tokenizing = trace.tokenizing();
        let prompt_ids: Arc<[u32]> = self.prompt_ids(request.input).await?.into();
        drop(tokenizing);
        let params = self.fit(params, options.max_tokens.is_some(), prompt_ids.len())?;
        let entry = shared.recent.begin(NewRecord {
            id: request_id.clone(),
            label: label.clone(),
            api,
            received: self.received,
            prompt_tokens: prompt_ids.len() as u32,
            choices: params.choices,
        });
        let cache_salt = client.salt(request.cache_salt.into_bytes());
        let wanted = Wanted {
            answers: OnceLock::new(),
            prompt_ids: Arc::clone(&prompt_ids),
            trunk_ids: Arc::clone(&prompt_ids),
            cache_salt: cache_salt.clone(),
            choices: params.choices,
            max_tokens: params.max_tokens,
            tokens_left: params.max_tokens,
            from_start: params.prompt_logprobs.is_some(),
            local_tokens: shared.config.local_prefill_tokens,
            hashes: std::sync::Mutex::default(),
        };
        let request = LegRequest {
            request_id,
            prompt_ids,
            completions: Vec::new(),
            params,
            cache_salt,
            deadline: self.deadline,
            open_timeout: shared.config.leg_open_timeout,
            progress_timeout: shared.config.progress_timeout,
            trace: None,
        };
        let prompt = request.prompt_ids.len();
        trace.prepared(&request.request_id, &label, prompt, &request.params);
        let received = self.received;
        Ok(move |trace| Prepared {
            client,
            received,
            label,
            stops,
            request,
            wanted,
            entry,
            trace,
        })
    }

    /// Looks the name up; it never becomes a path.
    pub(crate) fn check_model(&self, name: &str) -> Result<(), RequestError> {
        if self.shared.model.answers_to(name) {
            return Ok(());
        }
        let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
        Err(RequestError::UnknownModel(format!("\"{shown}\"")))
    }

    async fn prompt_ids(&self, input: Option<Input>) -> Result<Vec<u32>, RequestError> {
        match input.ok_or(RequestError::NoInput)? {
            Input::Prompt(text) => self.tokenize_prompt(text).await,
            Input::Chat(chat) => self.tokenize_chat(chat).await,
            Input::Tokens(tokens) => self.check_ids(tokens.token_ids),
        }
    }

    /// Ids of a raw prompt.
    pub(crate) async fn tokenize_prompt(&self, text: String) -> Result<Vec<u32>, RequestError> {
        self.check_bytes("the prompt in bytes", text.len())?;
        let (shared, bytes) = (self.shared, text.len());
        let work = move |model: &baton_text::TextModel| model.encode_prompt(&text);
        shared
            .tokenizing
            .run(&shared.model.text, bytes, self.tokenize_until(), work)
            .await
    }

    /// Ids of a rendered chat.
    pub(crate) async fn tokenize_chat(
        &self,
        chat: v1::ChatInput,
    ) -> Result<Vec<u32>, RequestError> {
        let (got, limit) = (chat.messages.len(), baton_text::MAX_MESSAGES);
        if got > limit {
            return Err(RequestError::TooLong {
                what: "the number of messages",
                got,
                limit,
            });
        }
        let bytes = chat
            .messages
            .iter()
            .map(|message| message.role.len() + message.content.len());
        let bytes = bytes.sum();
        self.check_bytes("the chat in bytes", bytes)?;
        let messages: Vec<ChatMessage> = chat
            .messages
            .into_iter()
            .map(|message| ChatMessage {
                role: message.role,
                content: message.content,
            })
            .collect();
        let shared = self.shared;
        let work = move |model: &baton_text::TextModel| model.encode_chat(&messages);
        // A template costs more than its text.
        let weight = bytes + 4096;
        shared
            .tokenizing
            .run(&shared.model.text, weight, self.tokenize_until(), work)
            .await
    }

    /// Ids as given: any of the vocabulary, control tokens too.
    pub(crate) fn check_ids(&self, ids: Vec<u32>) -> Result<Vec<u32>, RequestError> {
        let vocabulary = self.shared.model.vocabulary;
        if ids.is_empty() {
            return Err(ConvertError::Missing {
                field: "tokens.token_ids",
            }
            .into());
        }
        match ids.iter().find(|&&id| id >= vocabulary) {
            Some(&id) => Err(RequestError::UnknownToken { id, vocabulary }),
            None => Ok(ids),
        }
    }

    /// Text of ids, if it is no longer than a message.
    pub(crate) async fn detokenize(
        &self,
        model: &str,
        ids: Vec<u32>,
        skip_special: bool,
    ) -> Result<String, RequestError> {
        self.check_model(model)?;
        let limit = self.shared.config.max_prompt_bytes;
        if ids.len() > limit {
            return Err(RequestError::TooLong {
                what: "the number of ids",
                got: ids.len(),
                limit,
            });
        }
        let (shared, weight) = (self.shared, ids.len());
        let work = move |model: &baton_text::TextModel| {
            model.decode_at_most(MAX_MESSAGE_BYTES, &ids, skip_special)
        };
        shared
            .tokenizing
            .run(&shared.model.text, weight, self.tokenize_until(), work)
            .await
    }

    fn check_bytes(&self, what: &'static str, got: usize) -> Result<(), RequestError> {
        let limit = self.shared.config.max_prompt_bytes;
        if got <= limit {
            return Ok(());
        }
        Err(RequestError::TooLong { what, got, limit })
    }

    fn tokenize_until(&self) -> Instant {
        self.deadline
            .min(Instant::now() + self.shared.config.admission_wait)
    }

    /// Bounds `max_tokens` by what the context leaves, and a default also by what pools can hold.
    fn fit(
        &self,
        mut params: SamplingParams,
        explicit: bool,
        prompt: usize,
    ) -> Result<SamplingParams, RequestError> {
        let context = self.shared.model.context_length as usize;
        if prompt >= context {
            let limit = context - 1;
            return Err(RequestError::TooLong {
                what: "the prompt in tokens",
                got: prompt,
                limit,
            });
        }
        params.max_tokens = params.max_tokens.min((context - prompt) as u32);
        if !explicit && let Some(room) = self.shared.directory.room(prompt as u32, params.choices) {
            params.max_tokens = params.max_tokens.min(room).max(1);
        }
        params.min_tokens = params.min_tokens.min(params.max_tokens);
        Ok(params)
    }

    /// Waits for the places of so many requests, all or none.
    pub(crate) async fn places(&self, count: usize) -> Result<OwnedSemaphorePermit, RequestError> {
        let until = self
            .deadline
            .min(Instant::now() + self.shared.config.admission_wait);
        let entered = self.shared.gate.enter(count, until).await;
        if entered.is_err() && Instant::now() >= self.deadline {
            return Err(RequestError::Deadline {
                doing: "waiting for a place",
            });
        }
        entered
    }
}

/// The client's label if it is harmless, else the request's own id; nothing if none was given.
fn label(given: String, request_id: &str) -> String {
    if is_harmless(&given) {
        given
    } else {
        request_id.to_owned()
    }
}

/// Whether a label may stand in logs and headers as it is.
pub(crate) fn is_harmless(label: &str) -> bool {
    label.len() <= MAX_LABEL_BYTES
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
