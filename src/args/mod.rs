//! What can be said on the command line. Every field is optional here: defaults belong to the
//! validation of each command, so that the configuration file can stand between.

mod bench;
mod clients;
mod membership;
mod numbers;
mod security;
mod service;
mod top;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

pub(crate) use bench::{
    BenchArgs, BenchCommand, BenchEngineArgs, BenchServeArgs, EnginePart, PeerArg,
};
pub(crate) use clients::{DrainArgs, GenerateArgs, HealthArgs, HealthName, StatusArgs, TraceArgs};
pub(crate) use membership::EtcdArgs;
pub(crate) use security::{
    AskingSecurityArgs, KeysArgs, KeysCommand, NewKeyArgs, ServingSecurityArgs,
};
pub(crate) use service::{
    KvDtypeArg, MetricsArgs, OFF, RouterArgs, TransportArg, UpArgs, WorkerArgs,
};
pub(crate) use top::TopArgs;

/// Large language models with prefill and decode on separate pools.
///
/// `baton up --model PATH` starts a router, a prefill worker and a decode worker on this machine;
/// `baton generate --chat "Hello"` asks them. Values come from flags, then BATON_* variables, then the
/// TOML file of --config, then defaults.
#[derive(Debug, Parser)]
#[command(name = "baton", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// TOML file with one section per command, e.g. [up]; keys are the flags' long names with `_` for `-`.
    #[arg(long, global = true, env = "BATON_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What to log to standard error, e.g. `info` or `baton_router=debug,warn`.
    #[arg(long, global = true, env = "BATON_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, \
3 the service refused or failed the request, 4 nobody answers at the address.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start router and workers on this machine and keep them running.
    Up(UpArgs),
    /// Run a router alone.
    Router(RouterArgs),
    /// Run a prefill worker alone.
    Prefill(WorkerArgs),
    /// Run a decode worker alone.
    Decode(WorkerArgs),
    /// Generate text, streamed to the terminal.
    Generate(Box<GenerateArgs>),
    /// Show workers, queues and page ledgers.
    Status(StatusArgs),
    /// Draw where the time of one request went.
    Trace(TraceArgs),
    /// Ask a worker to finish what runs and accept nothing more.
    Drain(DrainArgs),
    /// Ask one process whether it is ready or live, as a probe does.
    Health(HealthArgs),
    /// Show workers, requests and latencies as they change.
    Top(TopArgs),
    /// Make API keys.
    Keys(KeysArgs),
    /// Measure a running service, or the engine alone.
    Bench(BenchArgs),
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}
