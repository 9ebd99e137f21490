//! The `baton` command: roles of the service, its supervisor, and clients of it.
//!
//! Each command is a module; what a command needs is in [`args`], where values come from in
//! [`config`], and what a failure means to the shell in [`exit`].

mod args;
mod bench;
mod client;
mod config;
mod exit;
mod generate;
mod health;
mod interrupts;
mod keys;
mod logs;
mod output;
mod progress;
mod receipt;
mod roles;
mod security;
mod small_file;
mod status;
mod timeline;
mod top;
mod trace;
mod traces;
mod up;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{BenchCommand, Cli, Command};
use crate::exit::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    logs::start(cli.log.as_deref());
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let file = config::File::read(cli.config.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start the runtime: {error}")))?;
    let result = runtime.block_on(dispatch(cli, &file));
    // A blocking read of standard input must not hold the exit.
    runtime.shutdown_background();
    result
}

/// Fields of which a flag replaces all others of the file.
const PROMPTS: &[&str] = &["prompt", "chat", "prompt_file", "token_ids"];
const FINDING: &[&str] = &["membership", "router"];
const ARRIVALS: &[&str] = &[
    "concurrency",
    "rate",
    "steady",
    "inject",
    "rounds",
    "duration",
];

async fn dispatch(cli: Cli, file: &config::File) -> Result<(), Failure> {
    match cli.command {
        Command::Up(args) => {
            let inherited = up::Inherited {
                config: cli.config,
                log: cli.log,
            };
            up::run(file.layer("up", &args, &[])?, inherited).await
        }
        Command::Router(args) => roles::router(file.layer("router", &args, &[])?).await,
        Command::Prefill(args) => roles::prefill(file.layer("prefill", &args, &[FINDING])?).await,
        Command::Decode(args) => roles::decode(file.layer("decode", &args, &[FINDING])?).await,
        Command::Generate(args) => generate::run(file.layer("generate", &*args, &[PROMPTS])?).await,
        Command::Status(args) => status::run(file.layer("status", &args, &[])?).await,
        Command::Trace(args) => trace::run(file.layer("trace", &args, &[])?).await,
        Command::Drain(args) => status::drain(file.layer("drain", &args, &[])?).await,
        Command::Health(args) => health::run(file.layer("health", &args, &[])?).await,
        Command::Top(args) => top::run(file.layer("top", &args, &[])?).await,
        Command::Keys(args) => keys::run(&args),
        Command::Bench(bench) => match bench.command {
            BenchCommand::Serve(args) => {
                bench::serve(file.layer("bench_serve", &*args, &[ARRIVALS])?).await
            }
            BenchCommand::Engine(args) => bench::engine(&file.layer("bench_engine", &args, &[])?),
        },
    }
}
