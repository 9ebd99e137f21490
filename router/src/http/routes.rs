//! Which call is what, and what all calls have in common: keys, limits, labels, errors. It must not know
//! connections.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use baton_cluster::PeerInfo;
use baton_telemetry::metrics::{CONTENT_TYPE, Metrics};
use serde::Serialize;
use tonic::Code;

use super::answer::{Call, REQUEST_ID};
use super::body::read_json;
use super::chat::ChatRequest;
use super::completion::CompletionRequest;
use super::error::HttpError;
use super::fields::{Fields, parse};
use super::generate::Asked;
use super::openapi;
use super::room::{Room, Taken};
use super::texts::{DetokenizeRequest, TokenizeRequest};
use super::ui;
use crate::guard::{For, Guard};
use crate::keys::Key;
use crate::operations::Operations;
use crate::recent::Api;
use crate::request::Ending;
use crate::services::Asker;
use crate::shared::Shared;

/// Time that a client gives its request, in milliseconds.
const TIMEOUT: HeaderName = HeaderName::from_static("x-baton-timeout-ms");
/// The longest that can be said.
const MAX_TIMEOUT_MS: u64 = baton_proto::limits::MAX_DEADLINE_MS as u64;

/// What all calls share.
pub(super) struct App {
    pub(super) shared: Arc<Shared>,
    guard: Guard,
    /// For large bodies.
    room: Arc<Room>,
    metrics: Arc<Metrics>,
    /// Seconds since 1970.
    pub(super) started: u64,
}

type Shares = State<Arc<App>>;
/// Who calls, and with which key.
type Caller = (PeerInfo, Option<Arc<Key>>);

/// All endpoints.
pub(crate) fn routes(operations: &Arc<Operations>, guard: Guard, metrics: Arc<Metrics>) -> Router {
    let started = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let room = Room::new(operations.shared.config.max_body_bytes);
    let page = ui::routes(operations, &guard, &room);
    let app = Arc::new(App {
        room,
        shared: Arc::clone(&operations.shared),
        guard,
        metrics,
        started: started.as_secs(),
    });
    Router::new()
        .route("/v1/chat/completions", post(generate::<ChatRequest>))
        .route("/v1/completions", post(generate::<CompletionRequest>))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/health", get(health))
        .route("/health/live", get(live))
        .route("/metrics", get(figures))
        .route("/openapi.json", get(description))
        .merge(page)
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(app)
}

/// Parameters that ask for something to be generated.
pub(super) trait Generates: Fields {
    /// What the client means.
    fn asked(self) -> Result<Asked, HttpError>;
}

async fn generate<T: Generates + Send>(State(app): Shares, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let caller = match app.admit(For::Clients, &parts) {
        Ok(caller) => caller,
        Err(error) => return error.into_response(),
    };
    let counters = &app.shared.counters;
    let mut ending = Some(Ending::new(counters, Api::Http, &parts.headers));
    let answer = async {
        // Before the body: who has no place here cannot make us read.
        let call = app.call(caller, &parts.headers)?;
        let (body, taken) = read_json(&parts.headers, body, &app.room).await?;
        let asked = parse::<T>(&body)?.asked()?;
        drop(body);
        app.generate(call, asked, taken, &mut ending).await
    };
    let answer = answer.await;
    if let (Err(error), Some(ending)) = (&answer, &mut ending) {
        ending.refused(error.grpc_code(), &error.message());
    }
    answer.unwrap_or_else(HttpError::into_response)
}

async fn models(State(app): Shares, request: Request) -> Response {
    match app.enter(&request.into_parts().0) {
        Ok(_) => app.models(),
        Err(error) => error.into_response(),
    }
}

async fn model(State(app): Shares, Path(name): Path<String>, request: Request) -> Response {
    let entered = app.enter(&request.into_parts().0);
    entered
        .and_then(|_| app.model(&name))
        .unwrap_or_else(HttpError::into_response)
}

async fn tokenize(State(app): Shares, request: Request) -> Response {
    let answer = async {
        let (call, request, taken) = app.read::<TokenizeRequest>(request).await?;
        app.tokenize(call, request, taken).await
    };
    answer.await.unwrap_or_else(HttpError::into_response)
}

async fn detokenize(State(app): Shares, request: Request) -> Response {
    let answer = async {
        let (call, request, taken) = app.read::<DetokenizeRequest>(request).await?;
        app.detokenize(call, request, taken).await
    };
    answer.await.unwrap_or_else(HttpError::into_response)
}

/// Ready or not: for load balancers, without a key.
async fn health(State(app): Shares) -> Response {
    if app.shared.directory.is_ready() && app.shared.gate.is_inviting() {
        return StatusCode::OK.into_response();
    }
    let words = "no request can be answered now";
    HttpError::unavailable(words).into_response()
}

/// The process serves: for supervisors, who end one that does not.
async fn live() -> StatusCode {
    StatusCode::OK
}

/// Figures for Prometheus: for everyone where nobody needs a key, else for operators.
async fn figures(State(app): Shares, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    if let Err(error) = app.admit(For::Operators, &parts) {
        return error.into_response();
    }
    let mut response = Response::new(Body::from(app.metrics.render()));
    let kind = HeaderValue::from_static(CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn description() -> Response {
    json_response(&openapi::document())
}

async fn no_such_path(request: Request) -> Response {
    let path: String = request.uri().path().chars().take(128).collect();
    let words = format!("there is nothing at {path}; see /openapi.json");
    HttpError::refused(StatusCode::NOT_FOUND, Code::NotFound, words).into_response()
}

async fn no_such_method(request: Request) -> Response {
    let method: String = request.method().as_str().chars().take(32).collect();
    let words = format!("{method} is not for this path; see /openapi.json");
    HttpError::refused(StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented, words).into_response()
}

impl App {
    /// Who calls, and what they say, with the room that it takes.
    async fn read<T: Fields>(&self, request: Request) -> Result<(Call, T, Taken), HttpError> {
        let (parts, body) = request.into_parts();
        let call = self.enter(&parts)?;
        let (body, taken) = read_json(&parts.headers, body, &self.room).await?;
        Ok((call, parse(&body)?, taken))
    }

    /// Who calls, if they may.
    fn admit(&self, whom: For, parts: &Parts) -> Result<Caller, HttpError> {
        let peer = parts.extensions.get::<PeerInfo>();
        let peer = peer.cloned().unwrap_or_default();
        let authorization = parts.headers.get(header::AUTHORIZATION);
        let key = self.guard.admit(whom, peer.shown, authorization)?;
        Ok((peer, key))
    }

    fn enter(&self, parts: &Parts) -> Result<Call, HttpError> {
        let caller = self.admit(For::Clients, parts)?;
        self.call(caller, &parts.headers)
    }

    fn call(&self, (peer, key): Caller, headers: &HeaderMap) -> Result<Call, HttpError> {
        Ok(Call {
            asker: Asker::new(&self.shared, Api::Http, peer.address, key)?,
            label: label(headers),
            time_given: time_given(headers)?,
        })
    }
}

/// A label that cannot be read is replaced, like any other that is not harmless.
fn label(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(REQUEST_ID)?;
    Some(given.to_str().unwrap_or_default().to_owned())
}

fn time_given(headers: &HeaderMap) -> Result<Option<Duration>, HttpError> {
    let Some(given) = headers.get(TIMEOUT) else {
        return Ok(None);
    };
    let given = given.to_str().unwrap_or_default();
    if let Ok(ms @ 1..=MAX_TIMEOUT_MS) = given.parse() {
        return Ok(Some(Duration::from_millis(ms)));
    }
    let shown: String = given.chars().take(32).collect();
    let words = format!("{TIMEOUT} is {shown:?}, allowed: 1 to {MAX_TIMEOUT_MS}");
    Err(HttpError::invalid(Some(TIMEOUT.as_str()), words))
}

/// A value as JSON.
pub(super) fn json_response(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            response
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
