//! The page that operators keep open, at `/ui/`, and the data it asks for.
//!
//! The page itself is for everyone; what it shows and does needs an admin key where there are keys. It must
//! not know how any of it came about.

mod assets;
mod changes;
mod requests;
mod state;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use baton_cluster::PeerInfo;
use serde::Deserialize;
use serde_json::json;
use tonic::Code;

use super::body::read_json;
use super::error::HttpError;
use super::room::Room;
use super::routes::json_response;
use crate::guard::{For, Guard};
use crate::operations::Operations;

/// Whose scripts, styles and data the page may use: its own, and nobody may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// On every answer below `/ui`.
const HEADERS: [(HeaderName, &str); 3] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
];

/// What the page's calls share.
struct Page {
    operations: Arc<Operations>,
    guard: Guard,
    room: Arc<Room>,
    state: state::Snapshots,
}

type Shares = State<Arc<Page>>;

/// A worker to drain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    worker: String,
}

/// All below `/ui`.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(
    operations: &Arc<Operations>,
    guard: &Guard,
    room: &Arc<Room>,
) -> Router<S> {
    let page = Arc::new(Page {
        operations: Arc::clone(operations),
        guard: guard.clone(),
        room: Arc::clone(room),
        state: state::Snapshots::default(),
    });
    Router::new()
        .route("/ui", get(to_page))
        .route("/ui/", get(assets::index))
        .route("/ui/{file}", get(assets::file))
        .route("/ui/api/state", get(state))
        .route("/ui/api/requests/{name}", get(request))
        .route("/ui/api/drain", post(drain))
        .layer(axum::middleware::map_response(with_headers))
        .with_state(page)
}

async fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    let unless_said = HeaderValue::from_static("no-store");
    (response.headers_mut().entry(header::CACHE_CONTROL)).or_insert(unless_said);
    response
}

/// Relative, so that a proxy may serve it below a path of its own.
async fn to_page() -> Response {
    let to = [(header::LOCATION, "ui/")];
    (StatusCode::PERMANENT_REDIRECT, to).into_response()
}

async fn state(State(page): Shares, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    if let Err(error) = page.enter(&parts) {
        return error.into_response();
    }
    let whole = parts.uri.query() != Some("history=recent");
    let bytes = page.state.get(&page.operations, whole);
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, Body::from(bytes)).into_response()
}

async fn request(State(page): Shares, Path(name): Path<String>, request: Request) -> Response {
    if let Err(error) = page.enter(&request.into_parts().0) {
        return error.into_response();
    }
    let Some(found) = page.operations.shared.recent.get(&name) else {
        let words = "this request is no longer remembered here";
        return HttpError::refused(StatusCode::NOT_FOUND, Code::NotFound, words).into_response();
    };
    let record = found.request.map(requests::whole);
    json_response(&json!({ "now_us": found.now_us, "request": record }))
}

async fn drain(State(page): Shares, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let peer = page.enter(&parts)?;
        if !page.operations.keyed {
            changes::is_of_the_page(&parts.headers)?;
        }
        page.operations.may_change(peer.address)?;
        let (body, _taken) = read_json(&parts.headers, body, &page.room).await?;
        let drain: Drain = serde_json::from_slice(&body)
            .map_err(|error| HttpError::invalid(None, format!("the body: {error}")))?;
        let running = page.operations.drain(&drain.worker).await?;
        Ok(json_response(&json!({ "running": running })))
    };
    let answer: Result<Response, HttpError> = answer.await;
    answer.unwrap_or_else(HttpError::into_response)
}

impl Page {
    /// Who calls; an operator, where that can be told.
    fn enter(&self, parts: &Parts) -> Result<PeerInfo, HttpError> {
        let peer = parts.extensions.get::<PeerInfo>();
        let peer = peer.cloned().unwrap_or_default();
        let authorization = parts.headers.get(header::AUTHORIZATION);
        (self.guard).admit(For::Operators, peer.shown, authorization)?;
        Ok(peer)
    }
}
