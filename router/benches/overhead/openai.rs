//! `OpenAI`'s API, answered at once with words that mean nothing: whole, or as server-sent events. It must not know
//! who asks.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, header};
use futures::stream;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::Failure;

/// Its only model.
pub(crate) const MODEL: &str = "instant";
/// What a router asks of a server before it sends requests there.
const ABOUT: &str = r#"{"status":"ok","model_path":"instant","served_model_name":"instant","is_generation":true,"object":"list","data":[{"id":"instant","object":"model"}]}"#;

/// What the answer depends on.
#[derive(Debug, Deserialize)]
struct Asked {
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    max_tokens: Option<u32>,
}

/// A server; its address. One for prefill answers with the first token only.
pub(crate) async fn start(first_only: bool) -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let _ = connection.set_nodelay(true);
            let service = service_fn(move |request| answer(request, first_only));
            let serving = http1::Builder::new().serve_connection(TokioIo::new(connection), service);
            tokio::spawn(serving);
        }
    });
    Ok(address)
}

async fn answer(
    request: Request<Incoming>,
    first_only: bool,
) -> Result<Response<Body>, Infallible> {
    if request.method() == Method::GET {
        return Ok(response("application/json", Body::from(ABOUT)));
    }
    let is_chat = request.uri().path().contains("chat");
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => Bytes::new(),
    };
    let Ok(asked) = serde_json::from_slice::<Asked>(&body) else {
        return Ok(response("application/json", Body::from("{}")));
    };
    let tokens = if first_only {
        1
    } else {
        asked.max_tokens.unwrap_or(1)
    };
    if asked.stream {
        let pieces = (0..tokens).map(move |_| Bytes::from_static(piece(is_chat).as_bytes()));
        let ends =
            [last(is_chat), "data: [DONE]\n\n"].map(|end| Bytes::from_static(end.as_bytes()));
        let pieces = pieces.chain(ends).map(Ok::<_, Infallible>);
        return Ok(response(
            "text/event-stream",
            Body::from_stream(stream::iter(pieces)),
        ));
    }
    let words = " word".repeat(tokens as usize);
    let choice = if is_chat {
        format!(r#""message":{{"role":"assistant","content":"{words}"}}"#)
    } else {
        format!(r#""text":"{words}""#)
    };
    let whole = format!(
        r#"{{"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1,"model":"instant","choices":[{{"index":0,{choice},"logprobs":null,"finish_reason":"length"}}],"usage":{{"prompt_tokens":16,"completion_tokens":{tokens},"total_tokens":{}}}}}"#,
        16 + tokens
    );
    Ok(response("application/json", Body::from(whole)))
}

fn piece(is_chat: bool) -> &'static str {
    if is_chat {
        "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1796000000,\"model\":\"instant\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
    } else {
        "data: {\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\",\"created\":1796000000,\"model\":\"instant\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
    }
}

fn last(is_chat: bool) -> &'static str {
    if is_chat {
        "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1796000000,\"model\":\"instant\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n"
    } else {
        "data: {\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\",\"created\":1796000000,\"model\":\"instant\",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n"
    }
}

fn response(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
