//! What has happened since the start, by name: the one place where the router counts.
//!
//! It must not know who reads it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_telemetry::metrics::names::{ROUTES, STATUSES};
use tonic::Code;

use crate::recent::Api;
use crate::workers::Why;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One field per counter, and tallies of what has kinds.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
            requests: [[Endings; 2]; 2],
            attempts: [AtomicU64; Why::ALL.len()],
            http: [[AtomicU64; STATUSES.len()]; ROUTES.len() + 1],
        }

        impl Counters {
            fn named(&self) -> HashMap<String, u64> {
                let all = [$((stringify!($name), &self.$name)),*];
                all.iter()
                    .map(|(name, value)| ((*name).to_owned(), Self::get(value)))
                    .collect()
            }
        }
    };
}

counters! {
    requests_received,
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
    /// Prompt tokens of requests that got a token.
    prompt_tokens,
    /// Prompt tokens that the worker which computed the prompt held already, of requests that ended well.
    cached_tokens,
    /// Prompt tokens that the decode worker of a hand-off held already, of requests that ended well.
    decode_cached_tokens,
    tokens_emitted,
    /// Tokens of positions that had been sent before, or of choices that had ended.
    tokens_dropped,
    /// Dropped tokens that were not the ones sent before: workers disagree.
    tokens_contradicted,
}

/// Ends of requests, in the order of [`ENDINGS`].
type Endings = [AtomicU64; ENDINGS.len()];

/// How a request may end: its code, what that means, and the code's name. Any other code counts as the last.
const ENDINGS: [(Code, &str, &str); 11] = [
    (Code::Ok, "ok", "ok"),
    (Code::Cancelled, "cancelled", "cancelled"),
    (Code::InvalidArgument, "invalid", "invalid_argument"),
    (Code::NotFound, "invalid", "not_found"),
    (Code::Unauthenticated, "invalid", "unauthenticated"),
    (Code::PermissionDenied, "invalid", "permission_denied"),
    (Code::ResourceExhausted, "refused", "resource_exhausted"),
    (Code::Unavailable, "error", "unavailable"),
    (Code::DeadlineExceeded, "error", "deadline_exceeded"),
    (Code::Aborted, "error", "aborted"),
    (Code::Internal, "error", "internal"),
];

/// Requests that have ended in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) api: &'static str,
    /// Whether they asked for the model that is served.
    pub(crate) of_served_model: bool,
    pub(crate) outcome: &'static str,
    pub(crate) code: &'static str,
    pub(crate) count: u64,
}

impl Counters {
    /// Counts one.
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// So many so far.
    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// Counts a request that ended with this code.
    pub(crate) fn ended(&self, api: Api, of_served_model: bool, code: Code) {
        let code = match code {
            Code::OutOfRange => Code::InvalidArgument,
            code => code,
        };
        let at = ENDINGS.iter().position(|(known, ..)| *known == code);
        let endings = &self.requests[api as usize][usize::from(of_served_model)];
        Self::add(&endings[at.unwrap_or(ENDINGS.len() - 1)]);
    }

    /// Requests that have ended, by every way to end.
    pub(crate) fn endings(&self) -> impl Iterator<Item = Ended> + '_ {
        let apis = [(Api::Grpc, "grpc"), (Api::Http, "http")];
        apis.into_iter()
            .flat_map(|(api, name)| [(api, name, false), (api, name, true)])
            .flat_map(|(api, name, of_served_model)| {
                let endings = &self.requests[api as usize][usize::from(of_served_model)];
                ENDINGS
                    .iter()
                    .zip(endings)
                    .map(move |((_, outcome, code), count)| Ended {
                        api: name,
                        of_served_model,
                        outcome,
                        code,
                        count: Self::get(count),
                    })
            })
    }

    /// Counts an attempt by why it goes where it goes.
    pub(crate) fn attempt(&self, why: Why) {
        Self::add(&self.attempts[why as usize]);
    }

    /// Attempts so far by their reasons.
    pub(crate) fn attempts(&self) -> impl Iterator<Item = (Why, u64)> + '_ {
        let counts = self.attempts.iter().map(Self::get);
        Why::ALL.into_iter().zip(counts)
    }

    /// Counts a call over HTTP; `route` is of [`route`].
    pub(crate) fn called(&self, route: usize, status: u16) {
        // What is being said before an answer (1xx) is none.
        let class = usize::from(status / 100).clamp(2, 5) - 2;
        Self::add(&self.http[route][class]);
    }

    /// Calls over HTTP by route and class of status.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let routes = ROUTES.into_iter().chain(["other"]);
        routes.zip(&self.http).flat_map(|(route, statuses)| {
            STATUSES
                .iter()
                .zip(statuses)
                .map(move |(status, count)| (route, *status, Self::get(count)))
        })
    }

    /// All of them by name, for operators.
    pub(crate) fn snapshot(&self) -> HashMap<String, u64> {
        let mut all = self.named();
        let names = [
            ("requests_ok", &["ok"][..]),
            ("requests_cancelled", &["cancelled"]),
            (
                "requests_invalid",
                &[
                    "invalid_argument",
                    "not_found",
                    "unauthenticated",
                    "permission_denied",
                ],
            ),
            ("requests_refused", &["resource_exhausted"]),
            ("requests_unavailable", &["unavailable"]),
            ("requests_deadline", &["deadline_exceeded"]),
            ("requests_failed", &["aborted", "internal"]),
        ];
        for (name, codes) in names {
            let of_name = self.endings().filter(|ended| codes.contains(&ended.code));
            all.insert(name.to_owned(), of_name.map(|ended| ended.count).sum());
        }
        let placed = |is_local: bool| {
            let attempts = self.attempts();
            let alike = attempts.filter(|(why, _)| (why.placement() == "local") == is_local);
            alike.map(|(_, count)| count).sum()
        };
        all.insert("local_prefills".to_owned(), placed(true));
        all.insert("split_prefills".to_owned(), placed(false));
        all
    }
}

/// Which of [`ROUTES`] a path is, the number after them if none: never a word of the client's.
pub(crate) fn route(path: &str) -> usize {
    ROUTES
        .iter()
        .position(|route| path == *route || (route.ends_with('/') && path.starts_with(route)))
        .unwrap_or(ROUTES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_one_outcome_and_one_name() {
        let counters = Counters::default();
        for code in 0..=16 {
            counters.ended(Api::Http, true, Code::from_i32(code));
        }
        let total: u64 = counters.endings().map(|ended| ended.count).sum();
        assert_eq!(total, 17);
        let all = counters.snapshot();
        let named = [
            "ok",
            "cancelled",
            "invalid",
            "refused",
            "unavailable",
            "deadline",
            "failed",
        ];
        let named = named.map(|name| all[&format!("requests_{name}")]);
        assert_eq!(named.iter().sum::<u64>(), 17, "{named:?}");
        assert_eq!(named[..4], [1, 1, 5, 1]);
        assert!(
            counters
                .endings()
                .all(|ended| ended.count == 0 || ended.api == "http")
        );
    }

    #[test]
    fn obs_03_paths_are_routes_or_other() {
        let name = |path| ROUTES.get(route(path)).copied().unwrap_or("other");
        assert_eq!(name("/v1/chat/completions"), "/v1/chat/completions");
        assert_eq!(name("/v1/models/a/b"), "/v1/models/");
        assert_eq!(name("/ui/app.js"), "/ui/");
        for strange in [
            "",
            "/",
            "/v1",
            "/v1/chat/completions/",
            "/x\u{1f642}",
            "/metricsx",
        ] {
            assert_eq!(name(strange), "other", "{strange:?}");
        }
    }
}
