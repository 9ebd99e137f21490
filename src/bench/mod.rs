//! `baton bench`: load generators that report what a client sees.

mod lengths;
mod load;
mod plan;
mod report;

use crate::args::{BenchServeArgs, Format};
use crate::exit::Failure;

/// Loads a service and prints the report.
pub(crate) async fn serve(args: BenchServeArgs) -> Result<(), Failure> {
    let plan = plan::Plan::new(&args)?;
    let samples = load::run(&plan).await?;
    let report = report::Report::new(&samples, &plan);
    if let Some(path) = &args.gaps {
        report::write_gaps(path, &samples)?;
    }
    match args.format.unwrap_or(Format::Text) {
        Format::Json => println!("{}", report.json()),
        Format::Text => print!("{}", report.text()),
    }
    if samples.iter().all(|sample| sample.error.is_some()) {
        return Err(Failure::refused("every request failed"));
    }
    Ok(())
}
