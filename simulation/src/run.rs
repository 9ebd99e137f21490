//! One seed, from its scenario to its verdict. It must not know what happens in between.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::chance::{self, Random};
use crate::check;
use crate::client::{Client, Ending, Outcome};
use crate::faults::{Disturbances, carry_out};
use crate::fleet::{CLIENTS, Fleet, ROUTER, address};
use crate::log::Log;
use crate::model::Model;
use crate::network::Network;
use crate::planted::Planted;
use crate::scenario::{Ask, Scenario};

/// Longest run in virtual time.
const LONGEST: Duration = Duration::from_mins(10);

/// What came of a seed.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Requests that ended with all their tokens, with an error, and by their client.
    pub ended: [usize; 3],
    /// In words: what must not happen and did.
    pub wrong: Vec<String>,
    /// Everything that happened.
    pub log: Vec<String>,
}

/// Runs a seed, with a planted fault if one is given. Once per process: see [`crate::chance`].
///
/// # Errors
/// The model's file cannot be written or read, or there is no runtime.
pub fn run(seed: u64, planted: Option<Planted>) -> io::Result<Verdict> {
    let model = Arc::new(Model::new()?);
    let scenario = Scenario::of(seed, model.oracle.vocabulary);
    chance::seed(seed);
    // A thread of its own: what is drawn once per thread is drawn after the seed.
    let running = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        let verdict = runtime.block_on(play(seed, model, scenario, planted));
        runtime.shutdown_background();
        Ok(verdict)
    });
    running
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the run panicked")))
}

async fn play(
    seed: u64,
    model: Arc<Model>,
    scenario: Scenario,
    planted: Option<Planted>,
) -> Verdict {
    let log = Log::new();
    let network = Network::new(Random::named(seed, "network"), scenario.latencies.clone());
    let fleet = Fleet::new(seed, network, log.clone(), model, scenario.clone(), planted);
    let played = tokio::time::timeout(LONGEST, play_all(&fleet, &scenario)).await;
    let (ended, wrong) = played.unwrap_or_else(|_| {
        (
            [0; 3],
            vec![format!("no end within {LONGEST:?} of virtual time")],
        )
    });
    Verdict {
        ended,
        wrong,
        log: log.lines(),
    }
}

async fn play_all(fleet: &Arc<Fleet>, scenario: &Scenario) -> ([usize; 3], Vec<String>) {
    let mut wrong = Vec::new();
    let clients = fleet.network.start(CLIENTS);
    let dialer = clients.dialer();
    let everybody: Vec<_> = (0..scenario.workers.len()).collect();
    if let Err(error) = fleet.start() {
        return ([0; 3], vec![error]);
    }
    if let Err(held) = check::recovered(fleet, &dialer, &everybody).await {
        return ([0; 3], vec![format!("at the start {held}")]);
    }
    fleet.log.note("begin");
    let begin = Instant::now();
    let disturbed = Disturbances::default();
    let mut faults = JoinSet::new();
    for fault in scenario.faults.clone() {
        let at = begin + fault.at;
        faults.spawn(later(
            at,
            carry_out(fleet.clone(), disturbed.clone(), fault),
        ));
    }
    let mut ended = [0; 3];
    for (ask, outcome) in ask_all(fleet, &scenario.requests, begin).await {
        let place = match outcome.ending {
            Ending::Done => 0,
            Ending::Error(..) | Ending::Badly(_) => 1,
            Ending::Left => 2,
        };
        ended[place] += 1;
        let all = outcome.wrong.iter().cloned();
        let all = all.chain(check::ending(
            scenario,
            &scenario.requests[ask],
            &outcome,
            &disturbed,
        ));
        wrong.extend(all.map(|what| format!("request {ask}: {what}")));
    }
    while faults.join_next().await.is_some() {}
    let survivors: Vec<_> = everybody
        .into_iter()
        .filter(|&at| fleet.host(at).is_some())
        .collect();
    fleet
        .log
        .note(format_args!("all is quiet, {survivors:?} live"));
    if let Err(held) = check::recovered(fleet, &dialer, &survivors).await {
        wrong.push(held);
    }
    wrong.extend(probe(fleet, scenario, &survivors).await);
    if let Err(held) = check::recovered(fleet, &dialer, &survivors).await {
        wrong.push(held);
    }
    wrong.extend(check::calm(fleet));
    (ended, wrong)
}

async fn later<F: Future>(at: Instant, what: F) -> F::Output {
    tokio::time::sleep_until(at).await;
    what.await
}

/// Sends every request at its time; what came of each.
async fn ask_all(fleet: &Arc<Fleet>, asks: &[Ask], begin: Instant) -> Vec<(usize, Outcome)> {
    let clients = fleet.network.start(CLIENTS);
    let mut running = JoinSet::new();
    for (number, ask) in asks.iter().cloned().enumerate() {
        let (fleet, dialer) = (fleet.clone(), clients.dialer());
        running.spawn(async move {
            tokio::time::sleep_until(begin + ask.at).await;
            let client = Client {
                number,
                ask: &ask,
                model: &fleet.model,
                log: &fleet.log,
            };
            let outcome = client.run(&dialer, &address(ROUTER).to_string()).await;
            (number, outcome)
        });
    }
    let mut outcomes = running.join_all().await;
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes
}

/// When all is over, a request must be served as if nothing had been.
async fn probe(fleet: &Arc<Fleet>, scenario: &Scenario, survivors: &[usize]) -> Option<String> {
    if !survivors.iter().any(|&at| scenario.workers[at].decodes) {
        return None;
    }
    let ask = Ask {
        at: Duration::ZERO,
        drop_after: None,
        pause: Duration::ZERO,
        deadline: Duration::from_mins(1),
        ..scenario.requests.first()?.clone()
    };
    let outcomes = ask_all(fleet, &[ask], Instant::now()).await;
    let (_, outcome) = outcomes.first()?;
    let is_fine = matches!(outcome.ending, Ending::Done) && outcome.wrong.is_empty();
    (!is_fine).then(|| {
        format!(
            "after all was over: {:?}, {:?}",
            outcome.ending, outcome.wrong
        )
    })
}
