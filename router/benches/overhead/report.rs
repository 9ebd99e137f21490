//! The figures, for people and for programs. It must not know how they came about.

use std::fmt::Write as _;
use std::fs;

use serde_json::{Map, Value, json};

use crate::Failure;
use crate::arguments::RunArgs;
use crate::client::Percentiles;
use crate::rounds::{Measured, Round};

/// Runs of one caller, each after the run that goes to the backend without a router.
const ADDED: [(&str, &str, &str); 3] = [
    ("baton, gRPC", "one-baton-grpc", "one-direct-grpc"),
    ("baton, HTTP", "one-baton-http", "one-direct-http"),
    ("smg, HTTP", "one-smg-http", "one-direct-http"),
];
/// Runs of many callers.
const TAKEN: [(&str, &str); 7] = [
    ("streams, baton, gRPC", "streams-baton-grpc"),
    ("streams, baton, HTTP", "streams-baton-http"),
    ("streams, smg, HTTP", "streams-smg-http"),
    ("at once, baton, HTTP", "whole-baton-http"),
    ("at once, smg, HTTP", "whole-smg-http"),
    ("chat streams, baton, HTTP", "chats-baton-http"),
    ("chat streams, smg, HTTP", "chats-smg-http"),
];

/// A figure of a run.
type Figure = fn(&Measured) -> f64;

/// Prints, and writes JSON where it is wanted.
pub(crate) fn tell(args: &RunArgs, rounds: &[Round]) -> Result<(), Failure> {
    let mut text = String::new();
    let mut all = Map::new();
    writeln!(text, "\nmedians of {} rounds; microseconds", rounds.len())?;
    writeln!(
        text,
        "\none caller, added to the backend's own time (first token and last token: p50, p99)"
    )?;
    for (title, name, direct) in ADDED {
        if let Some(added) = added(rounds, name, direct) {
            let of = |what: &str| added[what].as_f64().unwrap_or_default();
            writeln!(
                text,
                "  {title:<12} first {:>6.0} {:>6.0}   last {:>6.0} {:>6.0}   (first token in {:.0}, directly {:.0})",
                of("first_p50"),
                of("first_p99"),
                of("last_p50"),
                of("last_p99"),
                of("first"),
                of("direct_first"),
            )?;
            all.insert(name.to_owned(), added);
        }
    }
    writeln!(
        text,
        "\n{} callers: answers per second, and of one core of the router",
        args.callers
    )?;
    for (title, name) in TAKEN {
        if let Some(taken) = taken(rounds, name) {
            let of = |what: &str| taken[what].as_f64().unwrap_or_default();
            writeln!(
                text,
                "  {title:<26} {:>7.0}/s   {:>7.0}/s per core ({:.0} us each)   end p50 {:.0} p99 {:.0}",
                of("per_second"),
                of("per_core_second"),
                of("processor_us"),
                of("end_p50"),
                of("end_p99"),
            )?;
            all.insert(name.to_owned(), taken);
        }
    }
    let streams: Figure = |run| run.seen.answers as f64 / run.seen.seconds;
    for (title, name) in [
        ("gRPC", "streams-baton-grpc"),
        ("HTTP", "streams-baton-http"),
    ] {
        if let Some(ratio) = ratio(rounds, streams, name, "streams-smg-http") {
            writeln!(
                text,
                "  streams per second over {title}, of smg's: {ratio:.2}"
            )?;
            all.insert(format!("{name}-of-smg"), json!(ratio));
        }
    }
    println!("{text}");
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_string_pretty(&all)?)?;
    }
    Ok(())
}

fn added(rounds: &[Round], name: &str, direct: &str) -> Option<Value> {
    let more = |figure: Figure| {
        let more = |round: &Round| Some(figure(round.get(name)?) - figure(round.get(direct)?));
        median(rounds.iter().filter_map(more).collect())
    };
    let of = |name: &str, figure: Figure| {
        median(
            rounds
                .iter()
                .filter_map(|round| Some(figure(round.get(name)?)))
                .collect(),
        )
    };
    Some(json!({
        "first_p50": more(|run| run.seen.first_us.p50)?,
        "first_p99": more(|run| run.seen.first_us.p99)?,
        "last_p50": more(|run| run.seen.last_us.p50)?,
        "last_p99": more(|run| run.seen.last_us.p99)?,
        "first": of(name, |run| run.seen.first_us.p50)?,
        "last": of(name, |run| run.seen.last_us.p50)?,
        "direct_first": of(direct, |run| run.seen.first_us.p50)?,
        "direct_last": of(direct, |run| run.seen.last_us.p50)?,
        "processor_us": of(name, processor_us)?,
    }))
}

fn taken(rounds: &[Round], name: &str) -> Option<Value> {
    let of = |figure: Figure| {
        median(
            rounds
                .iter()
                .filter_map(|round| Some(figure(round.get(name)?)))
                .collect(),
        )
    };
    let percentile = |of_run: fn(&Percentiles) -> f64| {
        let ends = rounds
            .iter()
            .filter_map(|round| Some(of_run(&round.get(name)?.seen.end_us)));
        median(ends.collect())
    };
    let processor = of(processor_us)?;
    Some(json!({
        "per_second": of(|run| run.seen.answers as f64 / run.seen.seconds)?,
        "processor_us": processor,
        "per_core_second": 1e6 / processor,
        "end_p50": percentile(|end| end.p50)?,
        "end_p99": percentile(|end| end.p99)?,
    }))
}

fn processor_us(run: &Measured) -> f64 {
    run.processor.unwrap_or_default().as_secs_f64() * 1e6
}

/// The median of the rounds' own ratios.
fn ratio(rounds: &[Round], figure: Figure, name: &str, other: &str) -> Option<f64> {
    let ratio = |round: &Round| Some(figure(round.get(name)?) / figure(round.get(other)?));
    median(rounds.iter().filter_map(ratio).collect())
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}
