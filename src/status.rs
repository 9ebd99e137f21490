//! `baton status` and `baton drain`: the router's view of its workers. Must not know of requests.

use baton_proto::v1::{
    DrainRequest, ListWorkersRequest, ListWorkersResponse, PageLedger, WorkerRole, WorkerStatus,
};
use serde_json::{Value, json};

use crate::args::{DrainArgs, StatusArgs};
use crate::exit::Failure;
use crate::{client, output};

/// Prints workers, roles, incarnations, queues and ledgers.
pub(crate) async fn run(args: StatusArgs) -> Result<(), Failure> {
    let mut client = client::admin(args.connect.as_deref(), &args.security).await?;
    let response = client
        .list_workers(ListWorkersRequest {})
        .await
        .map_err(|status| Failure::from_status(&status))?
        .into_inner();
    output::in_format(
        args.format,
        || status_json(&response),
        || status_text(&response),
    )
}

/// Asks a worker to finish what runs.
pub(crate) async fn drain(args: DrainArgs) -> Result<(), Failure> {
    let worker_id = args
        .worker
        .ok_or_else(|| Failure::usage("name the worker to drain, as `baton status` shows it"))?;
    let mut client = client::admin(args.connect.as_deref(), &args.security).await?;
    let request = DrainRequest {
        worker_id: worker_id.clone(),
    };
    let response = client
        .drain(request)
        .await
        .map_err(|status| Failure::from_status(&status))?;
    let running = response.into_inner().running;
    output::result(&format!(
        "{worker_id} drains; {running} requests still run there\n"
    ))
}

fn role(worker: &WorkerStatus) -> &'static str {
    match worker.info.as_ref().map(baton_proto::v1::WorkerInfo::role) {
        Some(WorkerRole::Prefill) => "prefill",
        Some(WorkerRole::Decode) => "decode",
        _ => "unknown",
    }
}

fn status_json(response: &ListWorkersResponse) -> Value {
    let router = response.router.clone().unwrap_or_default();
    json!({
        "router": {
            "pid": router.pid,
            "incarnation": format!("{:016x}", router.incarnation),
            "requests_waiting": router.requests_waiting,
            "requests_running": router.requests_running,
            "counters": router.counters,
            "version": router.version,
        },
        "workers": response.workers.iter().map(worker_json).collect::<Vec<_>>(),
    })
}

fn worker_json(worker: &WorkerStatus) -> Value {
    let info = worker.info.clone().unwrap_or_default();
    let load = worker.load.clone().unwrap_or_default();
    let fingerprint = info.fingerprint.clone().unwrap_or_default();
    json!({
        "worker_id": info.worker_id,
        "role": role(worker),
        "incarnation": format!("{:016x}", info.incarnation),
        "address": info.address,
        "pid": info.pid,
        "state": worker.state,
        "model": info.model,
        "page_size": fingerprint.page_size,
        "queued": load.queued,
        "running": load.running,
        "queued_tokens": load.queued_tokens,
        "in_flight": worker.in_flight,
        "step_us": load.step_us,
        "load_age_ms": worker.load_age_ms,
        "draining": load.draining,
        "pages": pages_json(load.pages.unwrap_or_default()),
        "counters": load.counters,
        "version": info.version,
    })
}

fn pages_json(pages: PageLedger) -> Value {
    json!({
        "total": pages.total, "free": pages.free, "cached": pages.cached, "live": pages.live,
        "granted": pages.granted, "quarantined": pages.quarantined,
    })
}

fn status_text(response: &ListWorkersResponse) -> String {
    use std::fmt::Write as _;
    let router = response.router.clone().unwrap_or_default();
    let mut text = format!(
        "router  pid {}  incarnation {:016x}  {} waiting, {} running\n",
        router.pid, router.incarnation, router.requests_waiting, router.requests_running
    );
    if let Some(age_ms) = router.counters.get("membership_age_ms") {
        let (seconds, tenths) = (age_ms / 1000, age_ms % 1000 / 100);
        text.truncate(text.trim_end().len());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  etcd heard {seconds}.{tenths} s ago");
    }
    if response.workers.is_empty() {
        text.push_str("no workers are registered\n");
        return text;
    }
    let heading = [
        "worker",
        "role",
        "state",
        "pid",
        "queued",
        "running",
        "pages total",
        "free",
        "cached",
        "live",
        "granted",
        "quarantined",
        "incarnation",
    ];
    let mut rows = vec![heading.map(String::from)];
    for worker in &response.workers {
        let info = worker.info.clone().unwrap_or_default();
        let load = worker.load.clone().unwrap_or_default();
        let pages = load.pages.unwrap_or_default();
        rows.push([
            info.worker_id.clone(),
            role(worker).to_owned(),
            worker.state.clone(),
            info.pid.to_string(),
            load.queued.to_string(),
            load.running.to_string(),
            pages.total.to_string(),
            pages.free.to_string(),
            pages.cached.to_string(),
            pages.live.to_string(),
            pages.granted.to_string(),
            pages.quarantined.to_string(),
            format!("{:016x}", info.incarnation),
        ]);
    }
    text.push_str(&aligned(&rows));
    text
}

/// A table's rows, each cell as wide as the widest of its column.
fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or(0)
    });
    for row in rows {
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String cannot fail.
            let _ = write!(text, "{cell:<width$}  ");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}
