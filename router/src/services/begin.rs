//! From a client's messages to running requests, whatever protocol they came by. It must not know which.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::v1;
use tokio::time::Instant;

use super::metered::Metered;
use crate::clients::ClientPlace;
use crate::error::RequestError;
use crate::keys::Key;
use crate::request::{Admission, Ending, Prepared, start};
use crate::shared::Shared;

/// Whose requests these are.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) address: Option<SocketAddr>,
    pub(crate) key: Option<Arc<Key>>,
    /// Counts the first request.
    pub(crate) place: ClientPlace,
}

/// A request that runs until its responses are dropped.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) prompt_ids: Arc<[u32]>,
    pub(crate) responses: Metered,
}

impl Asker {
    /// Counts a call.
    pub(crate) fn new(
        shared: &Shared,
        address: Option<SocketAddr>,
        key: Option<Arc<Key>>,
    ) -> Result<Self, RequestError> {
        let place = shared.clients.enter(address)?.of_key(key.as_ref())?;
        Ok(Self {
            address,
            key,
            place,
        })
    }
}

/// Admits requests that belong together and starts them; if one is refused, none has begun. `ending` is the
/// first one's, and stays where it is if none begins.
pub(crate) async fn begin(
    shared: &Arc<Shared>,
    asker: Asker,
    time_given: Option<Duration>,
    requests: Vec<v1::GenerateRequest>,
    ending: &mut Option<Ending>,
) -> Result<Vec<Begun>, RequestError> {
    let (got, limit) = (requests.len(), shared.config.max_running);
    if got > limit {
        return Err(RequestError::TooLong {
            what: "the number of prompts",
            got,
            limit,
        });
    }
    let Asker {
        address,
        key,
        place,
    } = asker;
    let admission = Admission::new(shared, time_given);
    let mut first = Some(place);
    let mut all = Vec::with_capacity(got);
    for request in requests {
        let place = match first.take() {
            Some(place) => place,
            None => Asker::new(shared, address, key.clone())?.place,
        };
        all.push(admission.prepare(request, place).await?);
    }
    let mut places = admission.places(got).await?;
    if let Some(key) = &key {
        let tokens = |request: &Prepared| request.prompt_ids().len();
        key.charge_prompt(all.iter().map(tokens).sum(), Instant::now())?;
    }
    let mut begun = Vec::with_capacity(got);
    for request in all {
        let place = places.split(1).ok_or(RequestError::Internal)?;
        let ending = ending
            .take()
            .unwrap_or_else(|| Ending::new(&shared.counters));
        let prompt_ids = Arc::clone(request.prompt_ids());
        let responses = start(shared, request.admit(place), ending)?;
        begun.push(Begun {
            prompt_ids,
            responses: Metered::new(responses, key.clone()),
        });
    }
    Ok(begun)
}
