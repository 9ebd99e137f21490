//! What all requests share.
//!
//! It must not know any one request.

use std::sync::Arc;

use crate::clients::Clients;
use crate::config::RouterConfig;
use crate::counters::Counters;
use crate::gate::Gate;
use crate::model::ServedModel;
use crate::recent::Recent;
use crate::tokenizing::Tokenizing;
use crate::workers::Directory;

/// The router's state.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: RouterConfig,
    pub(crate) model: ServedModel,
    pub(crate) directory: Directory,
    pub(crate) counters: Arc<Counters>,
    /// Requests being served and waiting to be.
    pub(crate) gate: Gate,
    /// Calls in progress by client.
    pub(crate) clients: Arc<Clients>,
    pub(crate) tokenizing: Tokenizing,
    /// Requests of late.
    pub(crate) recent: Arc<Recent>,
}
