//! The port where metrics are read: HTTP/1.1, one path, no body read, few connections. It must not know
//! what the text says.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE as CONTENT_TYPE_HEADER, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::registry::Metrics;

/// What the text is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Time for a request's head to arrive, from the connection's beginning or the end of the last request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest life of a connection: whoever takes nothing is not waited for.
const LIFETIME: Duration = Duration::from_mins(10);
/// Most lines of a head.
const MAX_HEADERS: usize = 64;
/// Bytes of a head.
const MAX_BUFFER: usize = 16 << 10;
/// Most connections; a newcomer takes the place of the oldest.
const MAX_CONNECTIONS: usize = 32;
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves `GET /metrics` until it is dropped.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    // Ended when this is dropped.
    let mut connections = JoinSet::new();
    let mut order: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while connections.try_join_next().is_some() {}
                order.retain(|connection| !connection.is_finished());
                if order.len() >= MAX_CONNECTIONS
                    && let Some(oldest) = order.pop_front()
                {
                    oldest.abort();
                }
                order.push_back(connections.spawn(connection(stream, Arc::clone(&metrics))));
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// One connection; how it ends is its client's business.
async fn connection(stream: TcpStream, metrics: Arc<Metrics>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(&request, &metrics);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(LIFETIME, serving).await;
}

fn answer(request: &Request<Incoming>, metrics: &Metrics) -> Response<Full<Bytes>> {
    let of = |status: StatusCode, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        let kind = HeaderValue::from_static(CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE_HEADER, kind);
        response
    };
    if request.uri().path() != "/metrics" {
        return of(StatusCode::NOT_FOUND, "only /metrics is here\n".to_owned());
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let words = "/metrics is read by GET\n".to_owned();
        let mut response = of(StatusCode::METHOD_NOT_ALLOWED, words);
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return response;
    }
    of(StatusCode::OK, metrics.render())
}
