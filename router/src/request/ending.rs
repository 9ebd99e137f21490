//! Counts how a request ended, also when its task is simply dropped.
//!
//! It must not know why.

use std::sync::Arc;

use tonic::Code;

use crate::counters::Counters;
use crate::recent::Api;

/// One request's outcome; cancelled unless something else is said.
#[derive(Debug)]
pub(crate) struct Ending {
    counters: Arc<Counters>,
    api: Api,
    /// Not known to be until its model has been looked at.
    of_served_model: bool,
    code: Code,
}

impl Ending {
    pub(crate) fn new(counters: &Arc<Counters>, api: Api) -> Self {
        Counters::add(&counters.requests_received);
        Self {
            counters: Arc::clone(counters),
            api,
            of_served_model: false,
            code: Code::Cancelled,
        }
    }

    /// It asks for the model that is served.
    pub(crate) fn is_of_served_model(&mut self) {
        self.of_served_model = true;
    }

    pub(crate) fn set(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.counters
            .ended(self.api, self.of_served_model, self.code);
    }
}
