//! What the page shows, written once for all who look within half a second. It must not know who they are.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use baton_proto::v1;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::requests::brief;
use crate::operations::Operations;

/// How long what has been written is shown.
const FRESH: Duration = Duration::from_millis(500);
/// Requests shown.
const REQUESTS: usize = 100;
/// Seconds shown to a page that has those before them.
const RECENT_SECONDS: usize = 10;

/// What has been written: with the whole history, and with the end of it.
#[derive(Debug, Default)]
pub(super) struct Snapshots([Mutex<Option<(Instant, Bytes)>>; 2]);

impl Snapshots {
    /// JSON that is fresh enough.
    pub(super) fn get(&self, operations: &Operations, whole: bool) -> Bytes {
        let mut kept = self.0[usize::from(whole)]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match &*kept {
            Some((at, bytes)) if now.saturating_duration_since(*at) < FRESH => bytes.clone(),
            _ => {
                let seconds = if whole { 0 } else { RECENT_SECONDS };
                // Values of this kind can always be written.
                let bytes = serde_json::to_vec(&state(operations, seconds)).unwrap_or_default();
                let bytes = Bytes::from(bytes);
                *kept = Some((now, bytes.clone()));
                bytes
            }
        }
    }
}

fn state(operations: &Operations, seconds: usize) -> Value {
    let shared = &operations.shared;
    let list = operations.workers();
    let router = list.router.unwrap_or_default();
    let requests = shared.recent.list(REQUESTS);
    let history = shared.recent.history(seconds);
    let told: Vec<_> = requests.requests.into_iter().map(brief).collect();
    json!({
        "now_us": requests.now_us,
        "keyed": operations.keyed,
        "ready": shared.directory.is_ready() && shared.gate.is_inviting(),
        "model": {
            "name": shared.model.name(),
            "context_length": shared.model.context_length,
        },
        "router": {
            "pid": router.pid,
            "incarnation": format!("{:016x}", router.incarnation),
            "version": router.version,
            "waiting": router.requests_waiting,
            "running": router.requests_running,
            "counters": router.counters,
        },
        "workers": list.workers.into_iter().map(worker).collect::<Vec<_>>(),
        "requests": told,
        "bin_ends_us": history.bin_ends_us,
        "seconds": history.seconds.into_iter().map(second).collect::<Vec<_>>(),
    })
}

fn worker(worker: v1::WorkerStatus) -> Value {
    let info = worker.info.unwrap_or_default();
    let load = worker.load.unwrap_or_default();
    let pages = load.pages.unwrap_or_default();
    let role = match info.role() {
        v1::WorkerRole::Prefill => "prefill",
        v1::WorkerRole::Decode => "decode",
        v1::WorkerRole::Unspecified => "unknown",
    };
    json!({
        "id": info.worker_id,
        "role": role,
        "state": worker.state,
        "incarnation": format!("{:016x}", info.incarnation),
        "address": info.address,
        "pid": info.pid,
        "version": info.version,
        "max_batch": info.max_batch,
        "page_size": info.fingerprint.unwrap_or_default().page_size,
        "queued": load.queued,
        "running": load.running,
        "queued_tokens": load.queued_tokens,
        "step_us": load.step_us,
        "in_flight": worker.in_flight,
        "load_age_ms": worker.load_age_ms,
        "pages": {
            "total": pages.total,
            "free": pages.free,
            "cached": pages.cached,
            "live": pages.live,
            "granted": pages.granted,
            "quarantined": pages.quarantined,
        },
    })
}

fn second(second: v1::HistorySecond) -> Value {
    let bins = |bins: Option<v1::LatencyBins>| {
        let bins = bins.unwrap_or_default();
        json!({ "first_bin": bins.first_bin, "counts": bins.counts })
    };
    json!({
        "second": second.second,
        "received": second.received,
        "ended_ok": second.ended_ok,
        "ended_badly": second.ended_badly,
        "prompt_tokens": second.prompt_tokens,
        "completion_tokens": second.completion_tokens,
        "ttft": bins(second.ttft),
        "itl": bins(second.itl),
    })
}
