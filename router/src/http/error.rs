//! Errors in the shape that clients know, with the status that tells them what to do. It must not know where
//! they came from.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use baton_proto::retry_after;
use baton_text::TextError;
use tonic::{Code, Status};

use super::schema::reply;
use crate::error::RequestError;

/// The client has gone before its answer: nobody reads this status, but logs of proxies show it.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Hint where nobody knows when it will be better: workers come and routers go within seconds.
const UNKNOWN: Duration = Duration::from_secs(1);

/// A refusal or failure as clients see it.
#[derive(Debug)]
pub(super) struct HttpError {
    status: StatusCode,
    /// What gRPC callers would get, which is what is counted.
    grpc: Code,
    param: Option<String>,
    code: Option<&'static str>,
    message: String,
    retry_after: Option<Duration>,
}

reply! {
    /// What is said in the place of an answer.
    struct ErrorReply {
        error: ErrorDetail,
    }
}

reply! {
    /// What went wrong.
    struct ErrorDetail {
        /// In words, with the value and what is allowed.
        message: String,
        /// Whose fault it is: `invalid_request_error`, `authentication_error`, `permission_error`, `rate_limit_error` or `server_error`.
        r#type: &'static str,
        /// The parameter that was refused, if it was one.
        param: Option<String>,
        /// For programs, e.g. `model_not_found`.
        code: Option<&'static str>,
    }
}

impl HttpError {
    /// The request is wrong, in this parameter if one is named.
    pub(super) fn invalid(param: Option<&str>, message: impl Into<String>) -> Self {
        Self {
            param: param.map(str::to_owned),
            ..Self::refused(StatusCode::BAD_REQUEST, Code::InvalidArgument, message)
        }
    }

    /// Refused with a status of HTTP's own, which counts as this.
    pub(super) fn refused(status: StatusCode, grpc: Code, message: impl Into<String>) -> Self {
        Self {
            status,
            grpc,
            param: None,
            code: None,
            message: message.into(),
            retry_after: None,
        }
    }

    /// Refused for want of something that others hold now.
    pub(super) fn for_now(message: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            code: Some("overloaded"),
            retry_after: Some(retry_after),
            ..Self::unavailable(message)
        }
    }

    /// Nobody can do it now.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::refused(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, message)
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The code that gRPC callers would get, which is what is counted.
    pub(super) fn grpc_code(&self) -> Code {
        self.grpc
    }

    /// What is wrong, in words.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// What is written.
    pub(super) fn reply(&self) -> ErrorReply {
        ErrorReply {
            error: ErrorDetail {
                message: self.message.clone(),
                r#type: self.kind(),
                param: self.param.clone(),
                code: self.code,
            },
        }
    }
}

impl From<Status> for HttpError {
    fn from(status: Status) -> Self {
        let (http, code) = match status.code() {
            Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => {
                (StatusCode::BAD_REQUEST, None)
            }
            Code::NotFound => (StatusCode::NOT_FOUND, None),
            Code::Unauthenticated => (StatusCode::UNAUTHORIZED, Some("invalid_api_key")),
            Code::PermissionDenied => (StatusCode::FORBIDDEN, Some("permission_denied")),
            Code::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, Some("overloaded")),
            Code::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, Some("worker_unavailable")),
            Code::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, Some("deadline_exceeded")),
            Code::Aborted => (StatusCode::REQUEST_TIMEOUT, Some("slow_reader")),
            Code::Cancelled => (closed(), Some("cancelled")),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, Some("internal")),
        };
        Self {
            status: http,
            grpc: status.code(),
            param: None,
            code,
            retry_after: retry_after(&status),
            message: status.message().to_owned(),
        }
    }
}

fn closed() -> StatusCode {
    StatusCode::from_u16(CLIENT_CLOSED_REQUEST).unwrap_or(StatusCode::BAD_REQUEST)
}

impl From<RequestError> for HttpError {
    fn from(error: RequestError) -> Self {
        let (param, code) = match &error {
            RequestError::Invalid(invalid) => (invalid.field().rsplit('.').next(), None),
            RequestError::Text(TextError::UnknownRole { .. } | TextError::TooMany { .. }) => {
                (Some("messages"), None)
            }
            RequestError::UnknownModel(_) => (Some("model"), Some("model_not_found")),
            RequestError::TooLong { what, .. } if what.contains("tokens") => {
                (None, Some("context_length_exceeded"))
            }
            RequestError::NeverFits { .. } => (None, Some("context_length_exceeded")),
            RequestError::ShuttingDown => (None, Some("shutting_down")),
            _ => (None, None),
        };
        let param = param.map(str::to_owned);
        let known: Self = Status::from(error).into();
        Self {
            param,
            code: code.or(known.code),
            ..known
        }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.reply()).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let may_change = self.status == StatusCode::SERVICE_UNAVAILABLE;
        if let Some(after) = self.retry_after.or(may_change.then_some(UNKNOWN)) {
            // Whole seconds, and never "at once".
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, seconds.max(1).into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}
