//! Who may call which service: certificates and keys are looked at before a message is read.
//!
//! Health and reflection are open to everyone who gets a connection. It must not know what calls do.

use std::sync::Arc;

use baton_cluster::{PeerInfo, Shown, Tls};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::counters::Counters;
use crate::error::RequestError;
use crate::keys::ApiKeys;

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

    fn check(&self, whom: For, request: &mut Request<()>) -> Result<(), RequestError> {
        let shown = PeerInfo::of(request).map_or_else(Shown::default, |peer| peer.shown);
        let asks = |ask: fn(&Tls) -> bool| self.tls.as_ref().is_some_and(ask);
        match whom {
            For::Peers if asks(Tls::knows_peers) && !shown.peer => {
                return Err(RequestError::Unauthenticated(
                    "a worker needs a certificate of this service's CA (--tls-cert, --tls-key)",
                ));
            }
            For::Peers => return Ok(()),
            For::Clients | For::Operators if asks(Tls::knows_clients) && !shown.client => {
                return Err(RequestError::Unauthenticated(
                    "a client needs a certificate of the clients' CA (--tls-cert, --tls-key)",
                ));
            }
            For::Clients | For::Operators => {}
        }
        let Some(keys) = &self.keys else {
            return Ok(());
        };
        let key = keys.caller(request.metadata())?;
        if matches!(whom, For::Operators) && !key.is_admin() {
            return Err(RequestError::NotPermitted(
                "operating the service needs an admin key",
            ));
        }
        request.extensions_mut().insert(key);
        Ok(())
    }
}

impl Interceptor for Door {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        match self.0.check(self.1, &mut request) {
            Ok(()) => Ok(request),
            Err(error) => {
                Counters::add(&self.0.counters.callers_refused);
                Err(error.into())
            }
        }
    }
}
