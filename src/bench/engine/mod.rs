//! `baton bench engine`: the engine alone, beside what the machine allows.
//!
//! The way of a run: arguments → plan → the model is loaded ([`subject`]) → rounds of all work with the
//! ceilings between them ([`rounds`], [`machine`]) → figures → text or JSON ([`report`]).

mod chart;
mod figures;
mod footprint;
mod machine;
mod peer;
mod plan;
mod report;
mod rounds;
mod subject;
mod work;

use std::time::Instant;

use baton_model_file::{FileError, ModelFile};

use crate::args::BenchEngineArgs;
use crate::bench::plot;
use crate::exit::Failure;
use crate::{output, progress};

use figures::{Figures, Header};
use footprint::Footprint;
use machine::Machine;
use peer::Started;
use plan::Plan;
use rounds::{Contender, Rates};
use subject::Subject;
use work::Work;

/// Measures and prints the report. Progress goes to standard error.
pub(crate) fn run(args: &BenchEngineArgs) -> Result<(), Failure> {
    let plan = Plan::new(args)?;
    if let Some(path) = &args.plot {
        plot::check_writable(path)?;
    }
    let (mut subject, work, footprint) = prepare(&plan)?;
    let mut peers = start_peers(&plan)?;
    let figures = measure(&plan, &mut subject, &mut peers, &work, footprint)?;
    if let Some(path) = &args.plot {
        chart::chart(&figures).write(path)?;
    }
    output::in_format(
        Some(plan.format),
        || report::json(&figures),
        || report::text(&figures),
    )
}

/// Loads the model and runs every kind of work once, unmeasured; what is resident then is the footprint.
fn prepare(plan: &Plan) -> Result<(Subject, Vec<Work>, Footprint), Failure> {
    footprint::warm_file_cache(&plan.model);
    let begin = Instant::now();
    let file = ModelFile::open(&plan.model).map_err(|error| unreadable(plan, &error))?;
    let model = subject::load(&file, plan)?;
    let token_bytes = model.kv_layout(1, 1, plan.kv_dtype).page_bytes() as u64;
    let context_length = model.config().context_length;
    let available = baton_worker::available_memory();
    let work = plan.work(context_length, token_bytes, available, |work, why| {
        output::remark(&format!("left out: {work}: {why}\n"));
    });
    if work.is_empty() {
        return Err(Failure::failed("nothing is left to measure"));
    }
    let mut subject = Subject::new(model, plan, &work)?;
    let load_ms = begin.elapsed().as_secs_f64() * 1e3;
    let file_bytes = file.weight_bytes();
    drop(file);
    subject.fill()?;
    for &work in &work {
        subject.tokens_per_second(work)?;
    }
    let footprint = Footprint {
        load_ms,
        resident_bytes: baton_telemetry::metrics::resident_bytes().unwrap_or(0),
        kv_bytes: subject.pool_bytes(),
        file_bytes,
    };
    Ok((subject, work, footprint))
}

/// Starts the peer's processes, if there is to be a peer.
fn start_peers(plan: &Plan) -> Result<Vec<Started>, Failure> {
    let Some(peer) = &plan.peer else {
        return Ok(Vec::new());
    };
    let file = ModelFile::open(&plan.model).map_err(|error| unreadable(plan, &error))?;
    // Files of one name may differ: configuration and sizes of tensors tell them apart.
    let digest = file.metadata_digest();
    let identity = format!(
        "{:08x}",
        u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
    );
    peer.start(&plan.model, &identity, plan.threads, &mut |line| {
        output::remark(&format!("{line}\n"));
    })
}

fn unreadable(plan: &Plan, error: &FileError) -> Failure {
    Failure::failed(format!("{}: {error}", plan.model.display()))
}

/// Runs the rounds.
fn measure(
    plan: &Plan,
    subject: &mut Subject,
    peers: &mut [Started],
    work: &[Work],
    footprint: Footprint,
) -> Result<Figures, Failure> {
    let mut machine = Machine::new(plan.threads)?;
    let mut rates = Rates::new(work.len(), 1 + peers.len());
    let mut products = vec![Vec::new(); work.len()];
    let bar = progress::requests("measuring", u64::from(plan.rounds) * work.len() as u64);
    for _ in 0..plan.rounds {
        let mut last = None;
        for (index, &work) in work.iter().enumerate() {
            // Ceilings before each part of a round.
            let part = std::mem::discriminant(&work);
            if last.replace(part) != Some(part) {
                machine.measure();
            }
            let mut contenders: Vec<&mut dyn Contender> = vec![&mut *subject];
            contenders.extend(
                peers
                    .iter_mut()
                    .map(|peer| -> &mut dyn Contender { &mut peer.process }),
            );
            rates.measure(index, work, &mut contenders)?;
            if let Work::Prefill { tokens } = work {
                products[index].push(subject.time_products(tokens)?);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let header = Header {
        model: plan.model.display().to_string(),
        threads: plan.threads,
        isa: subject.isa(),
        kv_dtype: plan.kv_dtype.name(),
        rounds: plan.rounds,
        peer: peers.first().map(|peer| peer.process.name().to_owned()),
        formats: peers.iter().map(|peer| peer.format).collect(),
    };
    Ok(Figures::new(
        header,
        footprint,
        machine.ceilings(),
        subject,
        work,
        &rates,
        &products,
    ))
}
