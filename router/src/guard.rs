//! Who may call which service: certificates and keys are looked at before a message is read.
//!
//! Health and reflection are open to everyone who gets a connection. It must not know what calls do.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, header};
use baton_cluster::{PeerInfo, Shown, Tls};
use tonic::metadata::MetadataMap;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::counters::Counters;
use crate::error::RequestError;
use crate::keys::{ApiKeys, Key};

/// What callers have to show.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    pub(crate) tls: Option<Tls>,
    pub(crate) keys: Option<ApiKeys>,
    pub(crate) counters: Arc<Counters>,
}

/// Whom a service is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum For {
    Clients,
    Operators,
    Peers,
}

/// Stands before one service.
#[derive(Debug, Clone)]
pub(crate) struct Door(Guard, For);

impl Guard {
    pub(crate) fn door(&self, whom: For) -> Door {
        Door(self.clone(), whom)
    }

    /// Whose call this is, by certificate and `authorization`; counts those who are refused.
    pub(crate) fn admit(
        &self,
        whom: For,
        shown: Shown,
        authorization: Option<&HeaderValue>,
    ) -> Result<Option<Arc<Key>>, RequestError> {
        let mut headers = HeaderMap::new();
        if let (Some(_), Some(given)) = (&self.keys, authorization) {
            headers.insert(header::AUTHORIZATION, given.clone());
        }
        let admitted = self.check(whom, shown, &MetadataMap::from_headers(headers));
        if admitted.is_err() {
            Counters::add(&self.counters.callers_refused);
        }
        admitted
    }

    fn check(
        &self,
        whom: For,
        shown: Shown,
        metadata: &MetadataMap,
    ) -> Result<Option<Arc<Key>>, RequestError> {
        let asks = |ask: fn(&Tls) -> bool| self.tls.as_ref().is_some_and(ask);
        match whom {
            For::Peers if asks(Tls::knows_peers) && !shown.peer => {
                return Err(RequestError::Unauthenticated(
                    "a worker needs a certificate of this service's CA (--tls-cert, --tls-key)",
                ));
            }
            For::Peers => return Ok(None),
            For::Clients | For::Operators if asks(Tls::knows_clients) && !shown.client => {
                return Err(RequestError::Unauthenticated(
                    "a client needs a certificate of the clients' CA (--tls-cert, --tls-key)",
                ));
            }
            For::Clients | For::Operators => {}
        }
        let Some(keys) = &self.keys else {
            return Ok(None);
        };
        let key = keys.caller(metadata)?;
        if matches!(whom, For::Operators) && !key.is_admin() {
            return Err(RequestError::NotPermitted(
                "operating the service needs an admin key",
            ));
        }
        Ok(Some(key))
    }
}

impl Interceptor for Door {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let shown = PeerInfo::of(&request).map_or_else(Shown::default, |peer| peer.shown);
        match self.0.check(self.1, shown, request.metadata()) {
            Ok(key) => {
                if let Some(key) = key {
                    request.extensions_mut().insert(key);
                }
                Ok(request)
            }
            Err(error) => {
                Counters::add(&self.0.counters.callers_refused);
                Err(error.into())
            }
        }
    }
}
