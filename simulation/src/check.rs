//! What must hold of every run. It must not know how a run is made.

use std::collections::BTreeSet;
use std::time::Duration;

use baton_cluster::Dialer;
use baton_proto::v1;
use baton_proto::v1::admin_service_client::AdminServiceClient;
use baton_proto::v1::worker_service_client::WorkerServiceClient;
use tonic::Code;

use crate::client::{Ending, Outcome};
use crate::etcd::process::{ETCD, Etcd};
use crate::faults::Disturbances;
use crate::fleet::{Fleet, ROUTER, address, key, machine, name};
use crate::scenario::{Ask, Scenario};

/// After this long without faults and requests, nobody may hold anything any more, and everybody is used
/// again.
pub const RECOVERY: Duration = Duration::from_secs(20);
/// For so long after a disturbance a worker may still be shunned.
const AFTERMATH: Duration = Duration::from_secs(8);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// Most that one machine may ask of etcd within a second, and most attempts of a process to connect to it.
const MOST_CALLS: u64 = 60;
const MOST_DIALS: u64 = 8;

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
    // A process that starts while etcd is away is not known, or knows nobody, before etcd is back.
    let ever = |machine| disturbed.touched_before(machine, outcome.ended);
    let known = |at: usize| !ever(ETCD) || !(ever(machine(at)) || ever(ROUTER));
    let able = (0..scenario.workers.len())
        .find(|&at| scenario.workers[at].decodes && untouched(at) && known(at));
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
pub async fn recovered(fleet: &Fleet, dialer: &Dialer, running: &[usize]) -> Result<(), String> {
    let mut held = String::new();
    let looks = RECOVERY.as_millis() / LOOK.as_millis();
    for _ in 0..looks {
        held = held_by_any(fleet, dialer, running).await;
        if held.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(format!("after {RECOVERY:?}: {held}"))
}

async fn held_by_any(fleet: &Fleet, dialer: &Dialer, running: &[usize]) -> String {
    let asked = tokio::time::timeout(LOOK, router_holds(fleet, dialer, running));
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
    fleet: &Fleet,
    dialer: &Dialer,
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
                info.worker_id == fleet.scenario.name(at)
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
        None => (fleet.etcd.as_ref()).and_then(|etcd| etcd_holds(etcd, &listed.workers)),
    })
}

/// In words: what etcd keeps beside one key for each of these incarnations, under a lease.
fn etcd_holds(etcd: &Etcd, workers: &[v1::WorkerStatus]) -> Option<String> {
    let infos = workers.iter().filter_map(|worker| worker.info.as_ref());
    let wanted: BTreeSet<_> = infos.map(key).collect();
    let leased = etcd.with(|store| store.leased());
    let found = leased
        .iter()
        .map(|(key, _)| String::from_utf8_lossy(key).into_owned());
    let found: BTreeSet<_> = found.collect();
    (found != wanted).then(|| format!("etcd: {found:?} instead of {wanted:?}"))
}

/// In words: who asked etcd for more than a process in its right mind does.
pub fn calm(fleet: &Fleet) -> Option<String> {
    let calls = fleet.etcd.as_ref()?.calls();
    let busiest = calls.into_iter().max_by_key(|(_, count)| *count);
    let dials = fleet.network.most_dials(Etcd::address());
    if dials > MOST_DIALS {
        return Some(format!(
            "{dials} connections to etcd of one process within a second"
        ));
    }
    busiest
        .filter(|(_, count)| *count > MOST_CALLS)
        .map(|((from, second), count)| format!("{count} calls of {from} in second {second}"))
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
