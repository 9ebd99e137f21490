//! From a client's messages to running requests, whatever protocol they came by. It must not know which.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::v1;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::metered::Metered;
use crate::clients::ClientPlace;
use crate::error::RequestError;
use crate::keys::Key;
use crate::recent::Api;
use crate::request::{Admission, Ending, Prepared, RequestTrace, start};
use crate::shared::Shared;

/// Whose requests these are.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) api: Api,
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
        api: Api,
        address: Option<SocketAddr>,
        key: Option<Arc<Key>>,
    ) -> Result<Self, RequestError> {
        let place = place_of(shared, address, key.as_ref())?;
        Ok(Self {
            api,
            address,
            key,
            place,
        })
    }
}

fn place_of(
    shared: &Shared,
    address: Option<SocketAddr>,
    key: Option<&Arc<Key>>,
) -> Result<ClientPlace, RequestError> {
    shared.clients.enter(address)?.of_key(key)
}

/// Admits requests that belong together, one after the other, and starts them; if one is refused, none has
/// begun. `ending` is the first one's, and stays where it is if none begins.
pub(crate) async fn begin(
    shared: &Arc<Shared>,
    asker: Asker,
    time_given: Option<Duration>,
    requests: impl ExactSizeIterator<Item = v1::GenerateRequest>,
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
    let (api, key) = (asker.api, asker.key.clone());
    let admission = Admission::new(shared, time_given);
    let mut all = Vec::with_capacity(got);
    let entered = async {
        prepare(shared, &admission, asker, requests, ending, &mut all).await?;
        enter(&admission, key.as_deref(), &all).await
    };
    let mut places = match entered.await {
        Ok(places) => places,
        Err(error) => {
            for request in all {
                request.refused(&error);
            }
            return Err(error);
        }
    };
    let mut begun = Vec::with_capacity(got);
    for request in all {
        let place = places.split(1).ok_or(RequestError::Internal)?;
        let mut ending = ending
            .take()
            .unwrap_or_else(|| Ending::of_trace(&shared.counters, api, None));
        ending.is_of_served_model();
        let prompt_ids = Arc::clone(request.prompt_ids());
        let responses = start(shared, request.admit(place), ending)?;
        begun.push(Begun {
            prompt_ids,
            responses: Metered::new(responses, key.clone()),
        });
    }
    Ok(begun)
}

/// Makes requests ready for their places, one after the other, until one is refused.
async fn prepare(
    shared: &Shared,
    admission: &Admission<'_>,
    asker: Asker,
    requests: impl Iterator<Item = v1::GenerateRequest>,
    ending: &mut Option<Ending>,
    all: &mut Vec<Prepared>,
) -> Result<(), RequestError> {
    let Asker {
        api,
        address,
        key,
        place,
    } = asker;
    let caller = ending.as_ref().and_then(Ending::trace).cloned();
    let mut first = Some(place);
    for request in requests {
        let place = match first.take() {
            Some(place) => place,
            None => place_of(shared, address, key.as_ref())?,
        };
        let trace = RequestTrace::begin(shared, caller.clone(), &request);
        if let Some(ending) = ending.as_mut() {
            ending.concerns(trace.own_context(), &request.request_label);
            if shared.model.answers_to(&request.model) {
                ending.is_of_served_model();
            }
        }
        let log_span = trace.log_span();
        let prepared = admission.prepare(request, api, place, trace);
        all.push(prepared.instrument(log_span).await?);
    }
    Ok(())
}

/// Places for all, paid for.
async fn enter(
    admission: &Admission<'_>,
    key: Option<&Key>,
    all: &[Prepared],
) -> Result<OwnedSemaphorePermit, RequestError> {
    let places = admission.places(all.len()).await?;
    if let Some(key) = key {
        let tokens = |request: &Prepared| request.prompt_ids().len();
        key.charge_prompt(all.iter().map(tokens).sum(), Instant::now())?;
    }
    Ok(places)
}
