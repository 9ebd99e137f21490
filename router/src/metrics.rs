//! What a router tells Prometheus: distributions, recorded as requests go on, and all else, read from where it
//! is counted at each scrape.
//!
//! It must not know how a request is served.

use std::sync::Arc;
use std::time::Duration;

use baton_cluster::Membership;
use baton_proto::domain::WorkerRole;
use baton_proto::v1;
use baton_telemetry::metrics::{Metrics, Scrape, Timing, names};
use tokio::time::Instant;

use crate::counters::Counters;
use crate::error::role_name;
use crate::shared::Shared;
use crate::workers::{STATES, WorkerView};

/// Distributions of times. Taken once, recorded without locks.
#[derive(Debug)]
pub(crate) struct Timings {
    /// Whenever a request has its first token.
    pub(crate) ttft: Timing,
    /// Every gap between two tokens of one choice.
    pub(crate) itl: Timing,
    request: Timing,
    admission: Timing,
    queue: Timing,
    prefill: Timing,
    grant_wait: Timing,
    transfer: Timing,
    landing: Timing,
}

impl Timings {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            ttft: metrics.timing(&names::TTFT),
            itl: metrics.timing(&names::ITL),
            request: metrics.timing(&names::REQUEST),
            admission: metrics.timing(&names::ADMISSION),
            queue: metrics.timing(&names::QUEUE),
            prefill: metrics.timing(&names::PREFILL),
            grant_wait: metrics.timing(&names::GRANT_WAIT),
            transfer: metrics.timing(&names::TRANSFER),
            landing: metrics.timing(&names::LANDING),
        }
    }

    /// Records the phases of a request that has ended well.
    pub(crate) fn of_receipt(&self, receipt: &v1::Receipt) {
        let time = Duration::from_micros;
        self.request.record(time(receipt.end_to_end_us));
        self.admission.record(time(receipt.admission_us));
        self.queue.record(time(receipt.queue_us));
        self.prefill.record(time(receipt.prefill_us));
        if !receipt.transport.is_empty() {
            self.grant_wait.record(time(receipt.grant_wait_us));
            self.transfer.record(time(receipt.transfer_us));
            self.landing.record(time(receipt.landing_us));
        }
    }
}

/// Lets `metrics` read this router's figures for as long as it lives.
pub(crate) fn read(metrics: &Metrics, shared: &Arc<Shared>, membership: &Arc<Membership>) {
    let (shared, membership) = (Arc::downgrade(shared), Arc::downgrade(membership));
    metrics.read_from(move |scrape| {
        if let (Some(shared), Some(membership)) = (shared.upgrade(), membership.upgrade()) {
            scrape.spans(shared.tracer());
            tell_counters(&shared.counters, shared.model.name(), scrape);
            let views = shared.directory.views();
            tell_requests(&shared, &views, scrape);
            tell_workers(&views, scrape);
            tell_membership(&membership, views.len(), scrape);
        }
    });
}

fn tell_counters(counters: &Counters, model: &str, scrape: &Scrape<'_>) {
    for ended in counters.endings() {
        let model = if ended.of_served_model {
            model
        } else {
            "other"
        };
        let labels = [ended.api, model, ended.outcome, ended.code];
        scrape.count(&names::REQUESTS, labels, ended.count);
    }
    for (route, status, count) in counters.calls() {
        scrape.count(&names::HTTP_REQUESTS, [route, status], count);
    }
    for (why, count) in counters.attempts() {
        let labels = [why.placement(), why.name()];
        scrape.count(&names::ATTEMPTS, labels, count);
    }
    for (name, counter) in [
        (&names::CALLERS_REFUSED, &counters.callers_refused),
        (&names::SLOW_READERS, &counters.slow_readers),
        (&names::PROMPT_TOKENS, &counters.prompt_tokens),
        (&names::COMPLETION_TOKENS, &counters.tokens_emitted),
        (&names::RETRIES, &counters.retries),
        (&names::RESUMES, &counters.resumes),
        (&names::GRANT_RETRIES, &counters.grant_retries),
        (&names::QUARANTINES, &counters.worker_failures),
        (&names::TOKENS_DROPPED, &counters.tokens_dropped),
        (&names::TOKENS_CONTRADICTED, &counters.tokens_contradicted),
    ] {
        scrape.count(name, [], Counters::get(counter));
    }
    for (name, label, counter) in [
        (
            &names::WORKER_REFUSALS,
            "prefill",
            &counters.prefill_refusals,
        ),
        (&names::WORKER_REFUSALS, "decode", &counters.decode_refusals),
        (
            &names::PROMPT_TOKENS_CACHED,
            "prefill",
            &counters.cached_tokens,
        ),
        (
            &names::PROMPT_TOKENS_CACHED,
            "hand_off",
            &counters.decode_cached_tokens,
        ),
    ] {
        scrape.count(name, [label], Counters::get(counter));
    }
}

fn tell_requests(shared: &Shared, views: &[WorkerView], scrape: &Scrape<'_>) {
    let (running, waiting) = (shared.gate.inside() as f64, shared.gate.waiting() as f64);
    scrape.gauge(&names::REQUESTS_RUNNING, [], running);
    scrape.gauge(&names::REQUESTS_WAITING, [], waiting);
    let draining = f64::from(u8::from(shared.gate.is_closed()));
    scrape.gauge(&names::DRAINING, [], draining);
    let model = shared.model.name();
    scrape.gauge(&names::VLLM_RUNNING, [model], running);
    scrape.gauge(&names::VLLM_WAITING, [model], waiting);
    let decode = views
        .iter()
        .filter(|view| view.worker.info.role == WorkerRole::Decode);
    let pages = decode.map(|view| {
        let pages = &view.load.pages;
        (pages.live + pages.granted + pages.quarantined, pages.total)
    });
    let (used, total) = pages.fold((0, 0), |sum, pages| {
        (sum.0 + u64::from(pages.0), sum.1 + u64::from(pages.1))
    });
    let usage = used as f64 / total.max(1) as f64;
    scrape.gauge(&names::VLLM_CACHE_USAGE, [model], usage);
}

fn tell_workers(views: &[WorkerView], scrape: &Scrape<'_>) {
    let now = Instant::now();
    for role in [WorkerRole::Prefill, WorkerRole::Decode] {
        let of_role = || views.iter().filter(|view| view.worker.info.role == role);
        for state in STATES {
            let count = of_role().filter(|view| view.state_name() == state).count();
            scrape.gauge(&names::WORKERS, [role_name(role), state], count as f64);
        }
        let ages = of_role().filter_map(|view| view.load_at);
        let oldest = ages.map(|at| now.saturating_duration_since(at)).max();
        let oldest = oldest.unwrap_or_default().as_secs_f64();
        scrape.gauge(&names::WORKER_REPORT_AGE, [role_name(role)], oldest);
    }
    let refused = views.iter().map(|view| view.refused_loads).sum();
    scrape.count(&names::LOAD_REPORTS_REFUSED, [], refused);
}

fn tell_membership(membership: &Membership, workers: usize, scrape: &Scrape<'_>) {
    let figures = membership.counters();
    let figure = |wanted: &str| {
        let mut figures = figures.iter();
        figures.find_map(|(name, figure)| (*name == wanted).then_some(*figure))
    };
    let age_ms = figure("membership_age_ms").unwrap_or_default();
    scrape.gauge(&names::MEMBERSHIP_AGE, [], age_ms as f64 / 1000.0);
    let entries = figure("membership_entries").unwrap_or(workers as u64);
    scrape.gauge(&names::MEMBERSHIP_ENTRIES, [], entries as f64);
    for (name, counter) in [
        (&names::MEMBERSHIP_FULL_READS, "membership_full_reads"),
        (&names::MEMBERSHIP_INVALID, "membership_entries_invalid"),
        (&names::MEMBERSHIP_FENCED, "membership_workers_fenced"),
    ] {
        scrape.count(name, [], figure(counter).unwrap_or_default());
    }
}
