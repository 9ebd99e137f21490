//! The page's files, built into the binary, with tags by which browsers know them again. It must not know
//! what is in them.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tonic::Code;

use super::super::error::HttpError;

struct Asset {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:literal: $kind:expr),* $(,)?) => {
        [$(Asset { name: $name, kind: $kind, bytes: include_bytes!(concat!("assets/", $name)) }),*]
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const INDEX: &str = "index.html";

static ASSETS: [Asset; 14] = assets! {
    "index.html": HTML,
    "style.css": CSS,
    "parts.css": CSS,
    "icon.svg": SVG,
    "main.js": JS,
    "link.js": JS,
    "access.js": JS,
    "elements.js": JS,
    "figures.js": JS,
    "workers.js": JS,
    "timeline.js": JS,
    "receipt.js": JS,
    "latency.js": JS,
    "prompt.js": JS,
};

/// Tags in the order of the files.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let tag = |asset: &Asset| format!("\"{}\"", &blake3::hash(asset.bytes).to_hex()[..32]);
    ASSETS.iter().map(tag).collect()
});

pub(super) async fn index(headers: HeaderMap) -> Response {
    answer(INDEX, &headers)
}

pub(super) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    answer(&name, &headers)
}

fn answer(name: &str, headers: &HeaderMap) -> Response {
    let known = ASSETS.iter().zip(TAGS.iter());
    let Some((asset, tag)) = known.into_iter().find(|(asset, _)| asset.name == name) else {
        let words = "the page has no such file";
        return HttpError::refused(StatusCode::NOT_FOUND, Code::NotFound, words).into_response();
    };
    let held = headers.get(header::IF_NONE_MATCH);
    let held = held.and_then(|held| held.to_str().ok()).unwrap_or_default();
    let is_held = held
        .split(',')
        .any(|held| held.trim().trim_start_matches("W/") == tag);
    let mut response = if is_held {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, asset.kind)], asset.bytes).into_response()
    };
    // Asked for again each time, and sent again only after a change.
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}
