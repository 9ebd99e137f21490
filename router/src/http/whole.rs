//! Answers that are there as a whole: handed over piece by piece, so that what they hold is held until they have
//! been read. It must not know what they say.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde::Serialize;

use super::answer::Call;
use super::error::HttpError;
use super::room::Taken;
use crate::error::RequestError;

/// Bytes that are handed over at once. Connections have room for a few of these.
const PIECE: usize = 64 << 10;

/// JSON that counts as its caller's, and takes room, until it has been read.
pub(super) fn json(
    value: &impl Serialize,
    call: Call,
    mut taken: Taken,
) -> Result<Response, HttpError> {
    let bytes = serde_json::to_vec(value).map_err(|_| RequestError::Internal)?;
    taken.hold(bytes.len())?;
    Ok(json_bytes(bytes, (call, taken)))
}

/// The same, written already.
pub(super) fn json_bytes<H: Send + 'static>(bytes: Vec<u8>, held: H) -> Response {
    let length = bytes.len();
    let mut response = Response::new(body(bytes, held));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length.into());
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    response
}

/// A body of these bytes. What is held is dropped when the last of them is handed over, or nobody wants them any
/// more; at once, if they are few.
fn body<H: Send + 'static>(bytes: Vec<u8>, held: H) -> Body {
    if bytes.len() <= PIECE {
        return bytes.into();
    }
    let pieces = futures::stream::unfold((bytes, 0, held), |(bytes, at, held)| async move {
        let piece = bytes.get(at..)?.chunks(PIECE).next()?;
        // Not a part of the whole: that would be kept until its last part has been written.
        let piece = Bytes::copy_from_slice(piece);
        let next = at + piece.len();
        Some((Ok::<_, Infallible>(piece), (bytes, next, held)))
    });
    Body::from_stream(pieces)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn what_is_held_goes_with_the_last_piece() {
        let bytes: Vec<u8> = (0..=3 * PIECE).map(|at| at as u8).collect();
        let held = Arc::new(());
        let mut whole = body(bytes.clone(), Arc::clone(&held));
        let mut read = Vec::new();
        while read.len() < bytes.len() {
            assert_eq!(Arc::strong_count(&held), 2, "after {} bytes", read.len());
            let frame = whole.frame().await.unwrap().unwrap();
            let piece = frame.into_data().unwrap();
            assert!(piece.len() <= PIECE);
            read.extend_from_slice(&piece);
        }
        assert!(read == bytes);
        assert!(whole.frame().await.is_none());
        assert_eq!(Arc::strong_count(&held), 1);

        drop(body(bytes, Arc::clone(&held)));
        assert_eq!(Arc::strong_count(&held), 1, "nobody wants it");
    }
}
