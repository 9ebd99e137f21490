//! Counts how a request ended, also when its task is simply dropped.
//!
//! It must not know why.

use std::sync::Arc;

use tonic::Code;

use crate::counters::Counters;

/// One request's outcome; cancelled unless something else is said.
#[derive(Debug)]
pub(crate) struct Ending {
    counters: Arc<Counters>,
    code: Code,
}

impl Ending {
    pub(crate) fn new(counters: &Arc<Counters>) -> Self {
        Counters::add(&counters.requests_received);
        Self {
            counters: Arc::clone(counters),
            code: Code::Cancelled,
        }
    }

    pub(crate) fn set(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.counters.ended(self.code);
    }
}
