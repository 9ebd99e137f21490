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
mod logs;
mod progress;
mod roles;
mod status;
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
    let result = match cli.command {
        Command::Up(args) => runtime.block_on(up::run(file.layer("up", &args)?, cli.config)),
        Command::Router(args) => runtime.block_on(roles::router(file.layer("router", &args)?)),
        Command::Prefill(args) => runtime.block_on(roles::prefill(file.layer("prefill", &args)?)),
        Command::Decode(args) => runtime.block_on(roles::decode(file.layer("decode", &args)?)),
        Command::Generate(args) => runtime.block_on(generate::run(file.layer("generate", &*args)?)),
        Command::Status(args) => runtime.block_on(status::run(file.layer("status", &args)?)),
        Command::Drain(args) => runtime.block_on(status::drain(file.layer("drain", &args)?)),
        Command::Bench(bench) => match bench.command {
            BenchCommand::Serve(args) => {
                runtime.block_on(bench::serve(file.layer("bench_serve", &*args)?))
            }
        },
    };
    // A blocking read of standard input must not hold the exit.
    runtime.shutdown_background();
    result
}
