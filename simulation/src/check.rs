//! What must hold of every run. It must not know how a run is made.

use std::time::Duration;

use baton_cluster::Dialer;
use baton_proto::v1;
use baton_proto::v1::admin_service_client::AdminServiceClient;
use baton_proto::v1::worker_service_client::WorkerServiceClient;
use tonic::Code;

use crate::client::{Ending, Outcome};
use crate::faults::Disturbances;
use crate::fleet::{ROUTER, address, machine, name};
use crate::scenario::{Ask, Scenario};

/// After this long without faults and requests, nobody may hold anything any more, and everybody is used
/// again.
pub const RECOVERY: Duration = Duration::from_secs(20);
/// For so long after a disturbance a worker may still be shunned.
const AFTERMATH: Duration = Duration::from_secs(8);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// In words: why an ending is not as promised.
pub fn ending(
    scenario: &Scenario,
    ask: &Ask,
    outcome: &Outcome,
    disturbed: &Disturbances,
) -> Option<String> {
    let Ending::Error(code, message) = &outcome.ending else {
        return None;
    };
    let untouched =
        |at: usize| !disturbed.touch(machine(at), outcome.started, outcome.ended, AFTERMATH);
    let able =
        (0..scenario.workers.len()).find(|&at| scenario.workers[at].decodes && untouched(at));
    // A router that dies takes its clients' streams along.
    if disturbed.touch(
        ROUTER,
        outcome.started,
        outcome.ended,
        Duration::from_secs(3),
    ) {
        return None;
    }
    let elapsed = outcome.ended - outcome.started;
    let is_late = elapsed + Duration::from_millis(400) >= ask.deadline;
    let excused = match code {
        Code::DeadlineExceeded | Code::Cancelled => is_late,
        // Slow clients are given up; pools are small and requests come together.
        Code::Aborted => !ask.pause.is_zero(),
        Code::ResourceExhausted => true,
        Code::Unavailable => able.is_none(),
        _ => false,
    };
    (!excused).then(|| match able {
        Some(at) => format!("{code:?} ({message}) although {} was able", name(at)),
        None => format!("{code:?} ({message}) is no excuse"),
    })
}

/// Waits until nobody holds anything.
///
/// # Errors
/// In words: what is still held after [`RECOVERY`].
pub async fn recovered(
    dialer: &Dialer,
    scenario: &Scenario,
    running: &[usize],
) -> Result<(), String> {
    let mut held = String::new();
    let looks = RECOVERY.as_millis() / LOOK.as_millis();
    for _ in 0..looks {
        held = held_by_any(dialer, scenario, running).await;
        if held.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(format!("after {RECOVERY:?}: {held}"))
}

async fn held_by_any(dialer: &Dialer, scenario: &Scenario, running: &[usize]) -> String {
    let asked = tokio::time::timeout(LOOK, router_holds(dialer, scenario, running));
    let router = match asked.await {
        Ok(Ok(held)) => held,
        Ok(Err(error)) => Some(error),
        Err(_) => Some("the router does not answer".into()),
    };
    if let Some(held) = router {
        return held;
    }
    for &at in running {
        let held = match tokio::time::timeout(LOOK, worker_holds(dialer, at)).await {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => Some(error),
            Err(_) => Some("it does not answer".into()),
        };
        if let Some(held) = held {
            return format!("{}: {held}", name(at));
        }
    }
    String::new()
}

async fn router_holds(
    dialer: &Dialer,
    scenario: &Scenario,
    running: &[usize],
) -> Result<Option<String>, String> {
    let channel = dialer
        .channel(&address(ROUTER).to_string())
        .map_err(|error| error.to_string())?;
    let listed = AdminServiceClient::new(channel)
        .list_workers(v1::ListWorkersRequest {})
        .await
        .map_err(|status| status.to_string())?
        .into_inner();
    let router = listed.router.unwrap_or_default();
    if (router.requests_running, router.requests_waiting) != (0, 0) {
        return Ok(Some(format!(
            "router: {} requests run",
            router.requests_running
        )));
    }
    if let Some(busy) = listed.workers.iter().find(|worker| worker.in_flight > 0) {
        return Ok(Some(format!("router: {} in flight", busy.in_flight)));
    }
    let known = |at: usize| {
        let is_it = |worker: &&v1::WorkerStatus| {
            worker.info.as_ref().is_some_and(|info| {
                info.worker_id == scenario.name(at)
                    && info.address == address(machine(at)).to_string()
            })
        };
        listed.workers.iter().filter(is_it).count() == 1
    };
    let missing = running.iter().find(|&&at| !known(at));
    let count = listed.workers.len();
    Ok(match missing {
        Some(&at) => Some(format!("router: {} is not listed once", name(at))),
        None if count != running.len() => Some(format!("router: {count} workers are listed")),
        None => None,
    })
}

async fn worker_holds(dialer: &Dialer, at: usize) -> Result<Option<String>, String> {
    let channel = dialer
        .channel(&address(machine(at)).to_string())
        .map_err(|error| error.to_string())?;
    let load = WorkerServiceClient::new(channel)
        .get_worker(v1::GetWorkerRequest {})
        .await
        .map_err(|status| status.to_string())?
        .into_inner()
        .load
        .unwrap_or_default();
    let pages = load.pages.unwrap_or_default();
    let parts = [
        pages.free,
        pages.cached,
        pages.live,
        pages.granted,
        pages.quarantined,
    ];
    let sum: u32 = parts.iter().sum();
    if sum != pages.total {
        return Ok(Some(format!("its pages do not add up: {pages:?}")));
    }
    let legs = |which: &str| load.counters.get(which).copied().unwrap_or(0);
    let started = legs("legs_started");
    let ended: u64 = (load.counters.iter())
        .filter(|(key, _)| key.starts_with("legs_") && *key != "legs_started")
        .map(|(_, count)| count)
        .sum();
    let idle = pages.live + pages.granted + pages.quarantined == 0
        && (load.queued, load.running, load.queued_tokens) == (0, 0, 0)
        && started == ended;
    Ok((!idle).then(|| format!("{pages:?}, {started} legs started, {ended} ended, {load:?}")))
}
