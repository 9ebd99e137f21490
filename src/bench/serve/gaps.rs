//! Every single gap between two tokens, for files. What gaps mean is the reports' business.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use crate::exit::Failure;

use super::load::Sample;
use super::plan::Run;
use super::report::ms;

/// Every gap of a request: when it ended (since the request's start), and its length.
pub(crate) fn gaps(sample: &Sample) -> impl Iterator<Item = (Duration, Duration)> + '_ {
    sample
        .tokens
        .windows(2)
        .map(|pair| (pair[1], pair[1].saturating_sub(pair[0])))
}

/// Writes every gap of all runs as a line.
pub(crate) fn write(path: &Path, runs: &[(Run, Vec<Sample>)]) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(file, "end_s,gap_ms,request,steady,round,disturbed")?;
        for (run, samples) in runs {
            for (index, sample) in samples.iter().enumerate() {
                for (end, gap) in gaps(sample) {
                    let end = (sample.start + end).as_secs_f64();
                    writeln!(
                        file,
                        "{end:.6},{:.3},{index},{},{},{}",
                        ms(gap),
                        sample.steady,
                        run.round,
                        run.disturbed
                    )?;
                }
            }
        }
        file.flush()
    };
    write().map_err(|error| Failure::failed(format!("--gaps {}: {error}", path.display())))
}
