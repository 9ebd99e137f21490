//! What a worker tells Prometheus: its steps, recorded as they end, and all else, read from where it is
//! counted at each scrape.
//!
//! It must not know how requests are served.

use std::sync::Arc;

use baton_proto::domain::WorkerRole;
use baton_scheduler::{LoadSnapshot, StepFigures, StepObserver};
use baton_telemetry::metrics::{Metrics, Scrape, Size, Timing, names};

use crate::{Role, Worker};

/// Distributions of steps. Taken once, recorded without locks.
pub(crate) struct Steps {
    time: Timing,
    tokens: Size,
    sequences: Size,
}

impl Steps {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            time: metrics.timing(&names::STEP),
            tokens: metrics.size(&names::STEP_TOKENS),
            sequences: metrics.size(&names::STEP_SEQUENCES),
        }
    }
}

impl StepObserver for Steps {
    fn stepped(&self, step: StepFigures) {
        self.time.record(step.elapsed);
        self.tokens.record(step.tokens);
        self.sequences.record(step.sequences);
    }
}

/// A role's name.
pub(crate) fn role_name(role: WorkerRole) -> &'static str {
    match role {
        WorkerRole::Prefill => "prefill",
        WorkerRole::Decode => "decode",
    }
}

/// Lets `metrics` read this worker's figures for as long as it lives.
pub(crate) fn read<R: Role>(metrics: &Metrics, role: &Arc<R>) {
    let role = Arc::downgrade(role);
    metrics.read_from(move |scrape| {
        if let Some(role) = role.upgrade() {
            let worker = role.worker();
            let snapshot = worker.steps().snapshot();
            scrape.spans(worker.tracer());
            tell_identity(worker, scrape);
            tell_steps(worker, &snapshot, scrape);
            tell_pages(&snapshot, scrape);
            tell_aliases(worker, &snapshot, scrape);
            tell_transfers(&role.counters(), scrape);
        }
    });
}

fn tell_identity(worker: &Worker, scrape: &Scrape<'_>) {
    let info = worker.info();
    let labels = [
        role_name(info.role),
        info.worker_id.as_str(),
        &format!("{:016x}", info.incarnation.0),
        &info.model,
    ];
    scrape.gauge(&names::WORKER_INFO, labels, 1.0);
    let draining = f64::from(u8::from(worker.is_draining()));
    scrape.gauge(&names::DRAINING, [], draining);
    let still = worker.still_since().as_secs_f64();
    scrape.gauge(&names::STEP_STILL, [], still);
    let legs = worker.leg_figures();
    scrape.count(&names::LEGS_STARTED, [], legs.started);
    scrape.count(&names::LEGS_ENDED, ["done"], legs.done);
    for (reason, count) in legs.failures {
        scrape.count(&names::LEGS_ENDED, [reason], count);
    }
}

fn tell_steps(worker: &Worker, snapshot: &LoadSnapshot, scrape: &Scrape<'_>) {
    let (queued, running) = (f64::from(snapshot.queued), f64::from(snapshot.running));
    scrape.gauge(&names::SEQUENCES_WAITING, [], queued);
    scrape.gauge(&names::SEQUENCES_RUNNING, [], running);
    scrape.gauge(&names::WAITING_TOKENS, [], snapshot.queued_tokens as f64);
    let model = worker.info().model.as_str();
    scrape.gauge(&names::VLLM_WAITING, [model], queued);
    scrape.gauge(&names::VLLM_RUNNING, [model], running);
    for (name, total) in [
        (&names::TOKENS_SAMPLED, snapshot.tokens),
        (&names::PREEMPTIONS, snapshot.preemptions),
        (&names::SEQUENCES_CANCELLED, snapshot.cancelled),
        (&names::PREFIX_HIT_TOKENS, snapshot.prefix_hit_tokens),
        (&names::PAGES_EVICTED, snapshot.evicted),
    ] {
        scrape.count(name, [], total);
    }
}

fn tell_pages(snapshot: &LoadSnapshot, scrape: &Scrape<'_>) {
    let pages = &snapshot.ledger;
    for (state, count) in [
        ("free", pages.free),
        ("cached", pages.cached),
        ("live", pages.live),
        ("granted", pages.granted),
        ("quarantined", pages.quarantined),
    ] {
        scrape.gauge(&names::PAGES, [state], f64::from(count));
    }
    scrape.gauge(&names::PAGE_POOL, [], f64::from(pages.total));
}

fn tell_aliases(worker: &Worker, snapshot: &LoadSnapshot, scrape: &Scrape<'_>) {
    let info = worker.info();
    let pages = &snapshot.ledger;
    let used = f64::from(pages.live + pages.granted + pages.quarantined);
    let usage = used / f64::from(pages.total.max(1));
    scrape.gauge(&names::VLLM_CACHE_USAGE, [&info.model], usage);
    let labels = [
        info.model.as_str(),
        &info.fingerprint.page_size.to_string(),
        &info.pages_total.to_string(),
        &info.fingerprint.kv_dtype,
    ];
    scrape.gauge(&names::VLLM_CACHE_CONFIG, labels, 1.0);
}

/// Counters of the data plane have their reasons in their names.
fn tell_transfers(counters: &[(&'static str, u64)], scrape: &Scrape<'_>) {
    for &(name, total) in counters {
        let Some(name) = name.strip_prefix("kv_transfer_") else {
            continue;
        };
        if let Some(reason) = name.strip_prefix("failed_") {
            scrape.count(&names::TRANSFER_FAILURES, [reason], total);
        } else if let Some(reason) = name.strip_prefix("refused_") {
            scrape.count(&names::HANDSHAKES_REFUSED, [reason], total);
        } else {
            tell_transfer(name, total, scrape);
        }
    }
}

fn tell_transfer(name: &str, total: u64, scrape: &Scrape<'_>) {
    match name {
        "opened" => scrape.count(&names::TRANSFERS_STARTED, [], total),
        "committed" | "revoked" | "failed" => scrape.count(&names::TRANSFERS, [name], total),
        "checksum_mismatch" => scrape.count(&names::TRANSFER_FAILURES, ["checksum"], total),
        "handshakes_abandoned" => scrape.count(&names::HANDSHAKES_REFUSED, ["abandoned"], total),
        "bytes_sent" => scrape.count(&names::TRANSFER_BYTES, ["sent"], total),
        "bytes_received" => scrape.count(&names::TRANSFER_BYTES, ["received"], total),
        "bytes_sent_early" => scrape.count(&names::TRANSFER_EARLY_BYTES, [], total),
        "frames_late" => scrape.count(&names::FRAMES_DROPPED, ["late"], total),
        "pieces_duplicate" => scrape.count(&names::FRAMES_DROPPED, ["duplicate"], total),
        "frames_malformed" => scrape.count(&names::FRAMES_DROPPED, ["malformed"], total),
        "shm_fallbacks" => scrape.count(&names::TCP_FALLBACKS, [], total),
        "pages_quarantined" => scrape.count(&names::TRANSFER_QUARANTINED, [], total),
        "pages_fenced" => scrape.count(&names::TRANSFER_FENCED, [], total),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_the_data_plane_is_shown() {
        let counters = baton_kv_transfer::Counters::default().snapshot();
        for (name, _) in counters {
            let metrics = Metrics::new();
            metrics.read_from(move |scrape| tell_transfers(&[(name, 7)], scrape));
            let text = metrics.render();
            let shown = text
                .lines()
                .filter(|line| line.starts_with("baton_transfer") && line.ends_with(" 7"));
            assert_eq!(shown.count(), 1, "{name} is not shown once:\n{text}");
        }
    }
}
