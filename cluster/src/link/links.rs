//! A peer's links, one for each runtime that calls it: a connection lives on the runtime that opened it, and calls
//! from another one would wake its thread at every message. It must not know how many runtimes there are.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderMap;
use prost::Message;
use tokio::runtime::{Handle, Id};
use tonic::Status;

use super::{Call, Link};
use crate::ClusterError;
use crate::dialer::Dialer;

/// Links to one peer. There are as many as runtimes that have called: one, or one for each thread that serves.
pub struct Links {
    dialer: Dialer,
    address: String,
    known: Mutex<Vec<(Option<Id>, Arc<Link>)>>,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Links {
    /// To `host:port`.
    pub(crate) fn new(dialer: Dialer, address: &str) -> Result<Self, ClusterError> {
        // Only to know that it is an address.
        Link::new(dialer.clone(), address)?;
        Ok(Self {
            dialer,
            address: address.to_owned(),
            known: Mutex::default(),
        })
    }

    /// As [`Link::call`], on the link of the runtime that this is called on.
    ///
    /// # Errors
    /// As the peer says; with a source if it is the connection that failed.
    pub async fn call<Out: Message, In: Message + Default>(
        &self,
        path: &'static str,
        headers: HeaderMap,
        first: &Out,
    ) -> Result<Call<Out, In>, Status> {
        let link = self.here();
        let link = link.map_err(|error| Status::internal(error.to_string()))?;
        link.call(path, headers, first).await
    }

    fn here(&self) -> Result<Arc<Link>, ClusterError> {
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, link)) = known.iter().find(|(runtime, _)| *runtime == here) {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(Link::new(self.dialer.clone(), &self.address)?);
        known.push((here, Arc::clone(&link)));
        Ok(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runtime_has_a_link_of_its_own() {
        let links = Links::new(Dialer::plain(), "127.0.0.1:1").unwrap();
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap()
        };
        let (one, other) = (runtime(), runtime());
        let on = |runtime: &tokio::runtime::Runtime| {
            let _entered = runtime.enter();
            links.here().unwrap()
        };
        let first = on(&one);
        assert!(Arc::ptr_eq(&first, &on(&one)));
        assert!(!Arc::ptr_eq(&first, &on(&other)));
        assert!(Arc::ptr_eq(&first, &on(&one)));
        assert_eq!(links.known.lock().unwrap().len(), 2);
        assert!(Links::new(Dialer::plain(), "no address").is_err());
    }
}
