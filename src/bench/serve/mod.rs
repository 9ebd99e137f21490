//! `baton bench serve`: sends load to a service and reports what a client sees.

mod chart;
mod comparison;
mod gaps;
mod lengths;
mod load;
mod plan;
mod report;

use crate::args::BenchServeArgs;
use crate::bench::plot;
use crate::exit::Failure;
use crate::output;

use comparison::Comparison;
use plan::Plan;
use report::Report;

/// Loads a service and prints the report.
pub(crate) async fn run(args: BenchServeArgs) -> Result<(), Failure> {
    let plan = Plan::new(&args)?;
    for path in args.gaps.iter().chain(&args.plot) {
        plot::check_writable(path)?;
    }
    let mut runs = Vec::new();
    for run in plan.runs() {
        let samples = load::run(&run.plan).await?;
        runs.push((run, samples));
    }
    if let Some(path) = &args.gaps {
        gaps::write(path, &runs)?;
    }
    if let Some(path) = &args.plot {
        chart::chart(&runs).write(path)?;
    }
    let (json, text) = if plan.rounds.is_some() {
        let comparison = Comparison::new(plan.seed, &runs);
        (comparison.json(), comparison.text())
    } else {
        let samples: Vec<_> = runs
            .iter()
            .flat_map(|(_, samples)| samples.clone())
            .collect();
        let report = Report::new(&samples, &plan);
        (report.json(), report.text())
    };
    output::in_format(args.format, || json, || text)?;
    if runs
        .iter()
        .flat_map(|(_, samples)| samples)
        .all(|sample| sample.error.is_some())
    {
        return Err(Failure::refused("every request failed"));
    }
    Ok(())
}
