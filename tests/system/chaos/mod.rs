//! Chaos: a fleet of two routers, two prefill and three decode workers over a real etcd under steady load,
//! while a seeded killer works. Every answer is compared with the undisturbed one, no request may fail, and
//! in the end everybody is idle and conserved.
//!
//! About 20 seconds as a test; `make soak MINUTES=N SEED=N` runs it for longer.

mod faults;
mod figures;
mod fleet;
mod load;
mod mix;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use baton_proto::v1::PageLedger;

use self::figures::{Memory, print_faults};
use self::fleet::{Fleet, Role};
use self::load::Load;
use crate::client::{Client, WorkerClient, is_idle, ledger};
use crate::models::slow_model;
use crate::process::{Turn, try_resident_mib};

/// Of the test, which has a seed of its own too.
const SHORT: Duration = Duration::from_secs(20);
const SHORT_SEED: u64 = 4;
/// Between two looks at memory and ledgers.
const LOOK: Duration = Duration::from_millis(500);
/// What a class of processes may grow by besides half of what it had: a page pool that fills.
const MEMORY_SLACK_MIB: f64 = 160.0;

#[tokio::test(flavor = "multi_thread")]
async fn chaos_costs_no_request_and_no_token() {
    let _turn = Turn::take();
    let (seed, lasts) = settings();
    println!("seed                {seed}, {lasts:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let fleet = Fleet::start(&slow_model(folder.path()), folder.path()).await;
    let load = Load::prepare(&fleet, seed).await;

    let begin = Instant::now();
    let under_load = tokio::spawn({
        let load = load.clone();
        async move { load.run(seed).await }
    });
    let mut memory = Memory::default();
    let survived = tokio::select! {
        survived = fleet.clone().suffer(seed, begin + lasts) => survived,
        never = look(&fleet, begin, &mut memory) => match never {},
    };
    load.end();
    under_load.await.expect("the load ends");
    let lasted = begin.elapsed();

    let tally = load.tally.lock().expect("not poisoned").clone();
    tally.print();
    print_faults(&survived);
    settle(&fleet).await;
    for grown in memory.print(lasted, MEMORY_SLACK_MIB) {
        fleet.violated(format!("memory grew: {grown}"));
    }
    let ending = fleet.clone();
    let ended = tokio::task::spawn_blocking(move || ending.end()).await;
    if let Err(error) = ended {
        fleet.violated(format!("somebody did not end: {error}"));
    }
    if tally.answered == 0 || survived.is_empty() || tally.disturbed() == 0 {
        fleet.violated("nothing was disturbed".to_owned());
    }
    let violations = fleet.violations();
    println!("violations          {violations}");
    if violations > 0 {
        println!("logs of all processes are in {}", folder.keep().display());
        panic!("{violations} promises did not hold; the seed is {seed}");
    }
}

/// Seed and duration: of the test, or as the environment asks.
fn settings() -> (u64, Duration) {
    let number = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let seed = number("BATON_CHAOS_SEED").map(|text| text.parse().expect("a seed is a number"));
    let minutes = number("BATON_CHAOS_MINUTES");
    let Some(minutes) = minutes else {
        return (seed.unwrap_or(SHORT_SEED), SHORT);
    };
    let minutes: f64 = minutes.parse().expect("minutes are a number");
    let drawn = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.expect("a clock after 1970").as_millis() as u64 % 1_000_000
    };
    let lasts = Duration::from_secs_f64(minutes * 60.0);
    (seed.unwrap_or_else(drawn), lasts)
}

/// Looks at memory and ledgers again and again.
async fn look(fleet: &Fleet, begin: Instant, memory: &mut Memory) -> Infallible {
    loop {
        for member in fleet.members.iter().filter(|one| !one.history().disturbed) {
            let mib = member.pid().and_then(try_resident_mib);
            if let Some(mib) = mib {
                memory.book(member.role.name(), begin.elapsed(), mib);
            }
        }
        // Not waited for: it is locked while it starts.
        let etcd = fleet.etcd.try_lock().ok().and_then(|etcd| etcd.pid());
        if let Some(mib) = etcd.and_then(try_resident_mib) {
            memory.book("etcd", begin.elapsed(), mib);
        }
        fleet.check_ledgers().await;
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until every worker is idle and every router empty, and prints each ledger.
async fn settle(fleet: &Arc<Fleet>) {
    for member in 0..fleet.members.len() {
        let (role, name) = (fleet.members[member].role, &fleet.members[member].name);
        let address = fleet.members[member].address();
        let settled = tokio::spawn(async move {
            if role == Role::Router {
                let client = Client::connect(&address).await;
                client.assert_idle().await;
                return format!("{} resumes", client.counter("resumes").await);
            }
            let worker = WorkerClient::connect(&address).await;
            told(&ledger(&worker.when("idle", is_idle).await))
        });
        match settled.await {
            Ok(line) => println!("{name:<19} {line}"),
            Err(error) => fleet.violated(format!("{name} is not idle: {error}")),
        }
    }
}

fn told(pages: &PageLedger) -> String {
    format!(
        "{} free + {} cached + {} live + {} granted + {} quarantined = {}",
        pages.free, pages.cached, pages.live, pages.granted, pages.quarantined, pages.total
    )
}
