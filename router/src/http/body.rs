//! Reading what a client sent, under limits of size, kind and time. It must not know what it says.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use baton_cluster::http2::MAX_MESSAGE_BYTES;
use http_body_util::BodyExt as _;
use tonic::Code;

use super::error::HttpError;
use super::room::{Room, Taken};

/// Time for a whole body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a body of JSON. What it takes of the room is given back when the second value is dropped.
pub(super) async fn read_json(
    headers: &HeaderMap,
    body: Body,
    room: &Arc<Room>,
) -> Result<(Bytes, Taken), HttpError> {
    let kind = headers.get(header::CONTENT_TYPE);
    if !kind.is_some_and(|kind| is_json(kind.as_bytes())) {
        let words = "the body must be JSON, and say so: Content-Type: application/json";
        return Err(HttpError::refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidArgument,
            words,
        ));
    }
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    if !encodings.all(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let words = "compressed bodies are not taken: leave Content-Encoding out";
        return Err(HttpError::refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidArgument,
            words,
        ));
    }
    let declared = headers.get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > MAX_MESSAGE_BYTES as u64) {
        return Err(too_large());
    }
    let mut taken = room.begin();
    let reading = whole(body, &mut taken);
    let Ok(bytes) = tokio::time::timeout(BODY_TIMEOUT, reading).await else {
        let words = format!("the body did not arrive within {BODY_TIMEOUT:?}");
        return Err(HttpError::refused(
            StatusCode::REQUEST_TIMEOUT,
            Code::Aborted,
            words,
        ));
    };
    Ok((bytes?, taken))
}

/// All of a body, in one piece: many small ones would take many times their bytes.
async fn whole(mut body: Body, taken: &mut Taken) -> Result<Bytes, HttpError> {
    let mut first = Bytes::new();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let ended = |error| HttpError::invalid(None, format!("the body ended early: {error}"));
        let Ok(piece) = frame.map_err(ended)?.into_data() else {
            continue;
        };
        let bytes = first.len() + all.len() + piece.len();
        if bytes > MAX_MESSAGE_BYTES {
            return Err(too_large());
        }
        taken.hold(bytes)?;
        if bytes == piece.len() {
            first = piece;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&piece);
        }
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

fn too_large() -> HttpError {
    let words = format!("the body is larger than {MAX_MESSAGE_BYTES} bytes, the limit");
    HttpError::refused(StatusCode::PAYLOAD_TOO_LARGE, Code::OutOfRange, words)
}

/// Whether a content type is JSON, whatever its parameters.
fn is_json(kind: &[u8]) -> bool {
    let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    essence
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use futures::stream;
    use tonic::Code;

    use super::*;

    /// A body of so many pieces, each of which comes a second after the one before.
    fn slow(pieces: usize) -> Body {
        Body::from_stream(stream::unfold(0, move |sent| async move {
            if sent == pieces {
                return None;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), sent + 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn sec_05_a_body_has_its_time_however_it_trickles() {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
        let room = Room::new(1 << 20);
        let seconds = BODY_TIMEOUT.as_secs() as usize;
        let (whole, _taken) = read_json(&headers, slow(seconds - 1), &room).await.unwrap();
        assert_eq!(whole.len(), seconds - 1, "in time");
        for pieces in [seconds + 1, usize::MAX] {
            let begin = tokio::time::Instant::now();
            let error = read_json(&headers, slow(pieces), &room).await.unwrap_err();
            assert_eq!(begin.elapsed().as_secs(), BODY_TIMEOUT.as_secs());
            assert_eq!(error.grpc_code(), Code::Aborted);
            assert!(error.message().contains("30s"), "{error:?}");
            let response = axum::response::IntoResponse::into_response(error);
            assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
        }
    }
}
