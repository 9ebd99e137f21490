//! What has happened since the start, by name.
//!
//! It must not know who reads it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::Code;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One field per counter.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64),* }

        impl Counters {
            /// All of them.
            pub(crate) fn snapshot(&self) -> HashMap<String, u64> {
                let all = [$((stringify!($name), &self.$name)),*];
                all.iter()
                    .map(|(name, value)| ((*name).to_owned(), value.load(Ordering::Relaxed)))
                    .collect()
            }
        }
    };
}

counters! {
    requests_received,
    requests_ok,
    requests_cancelled,
    requests_invalid,
    requests_refused,
    requests_unavailable,
    requests_deadline,
    requests_failed,
    /// Calls without the certificate or key that they need.
    callers_refused,
    /// Clients that took nothing until the write deadline.
    slow_readers,
    /// Attempts that were planned anew after a worker's failure or refusal.
    retries,
    /// Attempts that went on after tokens which the client has been sent already.
    resumes,
    /// Grants that had to be replaced before their pages had landed.
    grant_retries,
    /// Decode workers that refused for now.
    decode_refusals,
    /// Prefill workers that refused for now.
    prefill_refusals,
    /// Failures that quarantined a worker.
    worker_failures,
    /// Requests prefilled on the decode worker.
    local_prefills,
    /// Requests prefilled on a prefill worker.
    split_prefills,
    tokens_emitted,
    /// Tokens of positions that had been sent before, or of choices that had ended.
    tokens_dropped,
    /// Dropped tokens that were not the ones sent before: workers disagree.
    tokens_contradicted,
}

impl Counters {
    /// Counts one.
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that ended with this code.
    pub(crate) fn ended(&self, code: Code) {
        Self::add(match code {
            Code::Ok => &self.requests_ok,
            Code::Cancelled => &self.requests_cancelled,
            Code::InvalidArgument | Code::NotFound | Code::OutOfRange => &self.requests_invalid,
            Code::ResourceExhausted => &self.requests_refused,
            Code::Unavailable => &self.requests_unavailable,
            Code::DeadlineExceeded => &self.requests_deadline,
            _ => &self.requests_failed,
        });
    }
}
