//! One HTTP/2 connection to a peer, for calls whose messages go both ways. A call's messages pass between the task
//! that makes it and the connection, and through no other task: a hand-off is made of several such steps.
//!
//! It connects when it is first used and again whenever its connection broke. It must not know services.

mod call;
mod connection;
mod frames;
mod links;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use h2::client::SendRequest;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use prost::Message;
use tonic::Status;

use crate::ClusterError;
use crate::dialer::Dialer;

pub use call::Call;
pub use frames::framed_messages;
pub use links::Links;

/// A peer's connection, open or not.
pub(crate) struct Link {
    dialer: Dialer,
    address: String,
    scheme: Scheme,
    authority: Authority,
    open: Mutex<Option<Open>>,
    /// Held while connecting: one attempt serves all who wait, whatever comes of it.
    connecting: tokio::sync::Mutex<()>,
    /// How many attempts have failed, and the last failure.
    failed: Mutex<(u64, Option<Status>)>,
}

/// A connection that worked when it was last used.
#[derive(Clone)]
struct Open {
    requests: SendRequest<Bytes>,
    /// Which one of this link it is.
    number: u64,
}

impl Link {
    /// To `host:port`.
    pub(crate) fn new(dialer: Dialer, address: &str) -> Result<Self, ClusterError> {
        let scheme = if dialer.is_secure() {
            Scheme::HTTPS
        } else {
            Scheme::HTTP
        };
        let authority = address.parse().map_err(|_| ClusterError::Address {
            address: address.chars().take(64).collect(),
        })?;
        Ok(Self {
            dialer,
            address: address.to_owned(),
            scheme,
            authority,
            open: Mutex::new(None),
            connecting: tokio::sync::Mutex::default(),
            failed: Mutex::default(),
        })
    }

    /// Calls `/package.Service/Method` with its first message, and waits until it is taken up. Dropping the call, or
    /// this while it waits, cancels it.
    ///
    /// # Errors
    /// As the peer says; with a source if it is the connection that failed.
    pub(crate) async fn call<Out: Message, In: Message + Default>(
        &self,
        path: &'static str,
        headers: HeaderMap,
        first: &Out,
    ) -> Result<Call<Out, In>, Status> {
        let mut requests = self.ready().await?;
        let request = self.request(path, headers)?;
        let (response, messages) = requests
            .send_request(request, false)
            .map_err(connection::failed)?;
        Call::begin(response, messages, first).await
    }

    fn request(&self, path: &'static str, headers: HeaderMap) -> Result<Request<()>, Status> {
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(PathAndQuery::from_static(path))
            .build();
        let uri = uri.map_err(|error| Status::internal(error.to_string()))?;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = headers;
        let grpc = HeaderValue::from_static("application/grpc");
        request.headers_mut().insert(header::CONTENT_TYPE, grpc);
        let trailers = HeaderValue::from_static("trailers");
        request.headers_mut().insert(header::TE, trailers);
        Ok(request)
    }

    /// A connection that takes one more call. One that turns out to be broken before anything was sent on it is
    /// replaced, once.
    async fn ready(&self) -> Result<SendRequest<Bytes>, Status> {
        let open = self.connected(0).await?;
        if let Ok(requests) = open.requests.ready().await {
            return Ok(requests);
        }
        let open = self.connected(open.number).await?;
        open.requests.ready().await.map_err(connection::failed)
    }

    /// The connection, if it is not this one, which is broken; a new one otherwise.
    async fn connected(&self, broken: u64) -> Result<Open, Status> {
        let current = || {
            let open = self.lock().clone();
            open.filter(|open| open.number != broken)
        };
        if let Some(open) = current() {
            return Ok(open);
        }
        let failures = self.failures().0;
        let _connecting = self.connecting.lock().await;
        if let Some(open) = current() {
            return Ok(open);
        }
        if let (now, Some(status)) = &*self.failures()
            && *now > failures
        {
            return Err(status.clone());
        }
        let requests = match connection::open(&self.dialer, &self.address).await {
            Ok(requests) => requests,
            Err(status) => {
                let mut failures = self.failures();
                *failures = (failures.0 + 1, Some(status.clone()));
                return Err(status);
            }
        };
        let number = self.lock().as_ref().map_or(0, |open| open.number) + 1;
        let open = Open { requests, number };
        *self.lock() = Some(open.clone());
        Ok(open)
    }

    fn failures(&self) -> MutexGuard<'_, (u64, Option<Status>)> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
