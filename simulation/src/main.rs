//! Runs seeds: each in a process of its own, so that nothing is left over from the one before.

use std::collections::VecDeque;
use std::io;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use baton_simulation::planted::Planted;
use baton_simulation::run::{Verdict, run};
use clap::{Parser, Subcommand, ValueEnum};

/// Longest that a process may take; seeds take a fraction of a second.
const LONGEST: Duration = Duration::from_mins(2);
/// Reasons that a seed prints, and letters of each: all together fit into a pipe.
const MOST_WRONG: usize = 20;
const MOST_LETTERS: usize = 1000;
/// Failing seeds whose reasons are printed.
const MOST_SHOWN: usize = 5;

#[derive(Parser)]
#[command(about = "Router and workers under virtual time, a simulated network and seeded faults")]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run one seed.
    One {
        /// Which.
        seed: u64,
        /// Print everything that happened.
        #[arg(long)]
        log: bool,
        /// Put a faulty part in.
        #[arg(long)]
        plant: Option<Planted>,
    },
    /// Run many seeds and print those that fail.
    Seeds {
        /// The first.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// How many.
        #[arg(long)]
        count: u64,
        /// How many at a time (default: one per CPU).
        #[arg(long)]
        jobs: Option<usize>,
        /// Put a faulty part in.
        #[arg(long)]
        plant: Option<Planted>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Action::One { seed, log, plant } => one(seed, log, plant),
        Action::Seeds {
            from,
            count,
            jobs,
            plant,
        } => many(from..from + count, jobs, plant),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn one(seed: u64, log: bool, plant: Option<Planted>) -> io::Result<bool> {
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .without_time()
            .with_writer(io::stderr)
            .init();
    }
    let Verdict {
        ended: [done, failed, left],
        wrong,
        log: lines,
    } = run(seed, plant)?;
    if log {
        for line in &lines {
            println!("{line}");
        }
    }
    for what in wrong.iter().take(MOST_WRONG) {
        println!(
            "wrong: {}",
            what.chars().take(MOST_LETTERS).collect::<String>()
        );
    }
    println!("seed {seed}: {done} done, {failed} with an error, {left} left by their clients");
    Ok(wrong.is_empty())
}

/// Counts of a whole run.
#[derive(Default)]
struct Sum {
    seeds: u64,
    ended: [u64; 3],
    failed: Vec<u64>,
}

fn many(
    seeds: std::ops::Range<u64>,
    jobs: Option<usize>,
    plant: Option<Planted>,
) -> io::Result<bool> {
    let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = jobs.unwrap_or_else(cpus).max(1);
    let started = Instant::now();
    let mut running: VecDeque<(u64, Child)> = VecDeque::new();
    let mut sum = Sum::default();
    for seed in seeds {
        if running.len() == jobs
            && let Some((seed, child)) = running.pop_front()
        {
            sum.add(seed, child)?;
        }
        running.push_back((seed, start(seed, plant)?));
    }
    for (seed, child) in running {
        sum.add(seed, child)?;
    }
    let Sum {
        seeds,
        ended: [done, failed, left],
        failed: failing,
    } = sum;
    println!(
        "{seeds} seeds in {:.1} s: {done} requests done, {failed} with an error that is excused, {left} left \
         by their clients",
        started.elapsed().as_secs_f64()
    );
    if failing.is_empty() {
        return Ok(true);
    }
    println!(
        "{} seeds fail: {failing:?}; replay one with `make sim SEED=…`",
        failing.len()
    );
    Ok(false)
}

fn start(seed: u64, plant: Option<Planted>) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("one").arg(seed.to_string());
    if let Some(name) = plant.as_ref().and_then(Planted::to_possible_value) {
        command.arg("--plant").arg(name.get_name());
    }
    command.stdout(Stdio::piped()).spawn()
}

impl Sum {
    fn add(&mut self, seed: u64, mut child: Child) -> io::Result<()> {
        let started = Instant::now();
        // What it prints fits into a pipe, so it can end before it is read.
        while child.try_wait()?.is_none() {
            if started.elapsed() > LONGEST {
                child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        self.seeds += 1;
        if let Some(last) = text.lines().last() {
            let numbers = last.split(": ").nth(1).unwrap_or_default();
            let numbers = numbers
                .split(' ')
                .filter_map(|word| word.parse::<u64>().ok());
            for (total, number) in self.ended.iter_mut().zip(numbers) {
                *total += number;
            }
        }
        if !output.status.success() {
            if self.failed.len() < MOST_SHOWN {
                println!("seed {seed} fails ({}):\n{text}", output.status);
            }
            self.failed.push(seed);
        }
        Ok(())
    }
}
