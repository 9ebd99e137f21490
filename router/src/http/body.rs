//! Reading what a client sent, under limits of size, kind and time. It must not know what it says.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use baton_cluster::http2::MAX_MESSAGE_BYTES;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::error::HttpError;

/// Time for a whole body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a body of JSON.
pub(super) async fn read_json(headers: &HeaderMap, body: Body) -> Result<Bytes, HttpError> {
    let kind = headers.get(header::CONTENT_TYPE);
    if !kind.is_some_and(|kind| is_json(kind.as_bytes())) {
        let words = "the body must be JSON, and say so: Content-Type: application/json";
        return Err(HttpError::refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            words,
        ));
    }
    let encoding = headers.get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let words = "compressed bodies are not taken: leave Content-Encoding out";
        return Err(HttpError::refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            words,
        ));
    }
    let declared = headers.get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > MAX_MESSAGE_BYTES as u64) {
        return Err(too_large());
    }
    let reading = Limited::new(body, MAX_MESSAGE_BYTES).collect();
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(HttpError::invalid(
            None,
            format!("the body ended early: {error}"),
        )),
        Err(_) => {
            let words = format!("the body did not arrive within {BODY_TIMEOUT:?}");
            Err(HttpError::refused(StatusCode::REQUEST_TIMEOUT, words))
        }
    }
}

fn too_large() -> HttpError {
    let words = format!("the body is larger than {MAX_MESSAGE_BYTES} bytes, the limit");
    HttpError::refused(StatusCode::PAYLOAD_TOO_LARGE, words)
}

/// Whether a content type is JSON, whatever its parameters.
fn is_json(kind: &[u8]) -> bool {
    let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    essence
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
}
