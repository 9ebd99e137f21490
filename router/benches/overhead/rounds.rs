//! The runs of each round, in turn. It must not know how figures are told.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Failure;
use crate::arguments::{Call, RunArgs};
use crate::client::Seen;
use crate::processes::{Backend, Router, backend, baton, client, smg};
use crate::report;

/// A run's name and what came of it.
pub(crate) type Round = BTreeMap<&'static str, Measured>;

/// What came of one run.
pub(crate) struct Measured {
    pub(crate) seen: Seen,
    /// The router's time on processors for each request, if there is a router.
    pub(crate) processor: Option<Duration>,
}

/// One kind of run.
struct Run<'a> {
    name: &'static str,
    call: Call,
    address: &'a str,
    router: Option<&'a Router>,
    callers: usize,
}

/// Measures, and tells.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let baton = baton(args)?;
    let backend = backend(&args.model, &baton.grpc)?;
    let smg = match &args.smg {
        Some(binary) => Some(smg(binary, &backend)?),
        None => None,
    };
    let runs = runs(args, &baton, &backend, smg.as_ref());
    // Before the first round: workers are found, connections are open, memory is touched.
    for run in &runs {
        measure(run, 0.2)?;
    }
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        let mut round = Round::new();
        for run in &runs {
            eprintln!("round {number}: {}", run.name);
            round.insert(run.name, measure(run, args.seconds)?);
        }
        rounds.push(round);
    }
    report::tell(args, &rounds)
}

fn measure(run: &Run<'_>, seconds: f64) -> Result<Measured, Failure> {
    let used = || {
        run.router
            .map(|router| router.part.processor_time())
            .transpose()
    };
    let model = run.router.map_or("", |router| router.model);
    let before = used()?;
    let seen = client(run.call, run.address, model, run.callers, seconds)?;
    let used = used()?
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    let processor = used.map(|used| used.div_f64(seen.asked.max(1) as f64));
    Ok(Measured { seen, processor })
}

fn runs<'a>(
    args: &RunArgs,
    baton: &'a Router,
    backend: &'a Backend,
    smg: Option<&'a Router>,
) -> Vec<Run<'a>> {
    let direct = |name, call, address| Run {
        name,
        call,
        address,
        router: None,
        callers: 1,
    };
    let through = |name, call, router: &'a Router, callers| Run {
        name,
        call,
        address: if call == Call::Generate {
            &router.grpc
        } else {
            &router.http
        },
        router: Some(router),
        callers,
    };
    let many = args.callers;
    let mut runs = vec![
        direct("one-direct-grpc", Call::Decode, &backend.decode),
        through("one-baton-grpc", Call::Generate, baton, 1),
        direct("one-direct-http", Call::Stream, &backend.http_decode),
        through("one-baton-http", Call::Stream, baton, 1),
        through("streams-baton-grpc", Call::Generate, baton, many),
        through("streams-baton-http", Call::Stream, baton, many),
        through("whole-baton-http", Call::Whole, baton, many),
        through("chats-baton-http", Call::Chat, baton, many),
    ];
    if let Some(smg) = smg {
        runs.insert(4, through("one-smg-http", Call::Stream, smg, 1));
        runs.insert(7, through("streams-smg-http", Call::Stream, smg, many));
        runs.insert(9, through("whole-smg-http", Call::Whole, smg, many));
        runs.push(through("chats-smg-http", Call::Chat, smg, many));
    }
    runs
}
