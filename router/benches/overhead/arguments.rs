//! What the command line says.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// What a router adds to the time of a request, and what it can take.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) role: Role,
    /// Given by cargo.
    #[arg(long, global = true, hide = true)]
    pub(crate) bench: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Start everything, measure in rounds, tell.
    Run(RunArgs),
    /// Instant workers and servers.
    Backend(BackendArgs),
    /// Callers.
    Client(ClientArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The `baton` binary.
    #[arg(long)]
    pub(crate) baton: PathBuf,
    /// Whose tokenizer is used.
    #[arg(long)]
    pub(crate) model: PathBuf,
    /// The `smg` binary.
    #[arg(long)]
    pub(crate) smg: Option<PathBuf>,
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Of each run with one caller, and of each with many.
    #[arg(long, default_value_t = 1.5)]
    pub(crate) seconds: f64,
    /// Of runs with many.
    #[arg(long, default_value_t = 32)]
    pub(crate) callers: usize,
    /// Write the figures there too.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BackendArgs {
    #[arg(long)]
    pub(crate) model: PathBuf,
    /// Where workers register.
    #[arg(long)]
    pub(crate) router: String,
}

#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    #[arg(long)]
    pub(crate) call: Call,
    #[arg(long)]
    pub(crate) address: String,
    #[arg(long, default_value = "")]
    pub(crate) model_name: String,
    #[arg(long, default_value_t = 1)]
    pub(crate) callers: usize,
    #[arg(long, default_value_t = 1.5)]
    pub(crate) seconds: f64,
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Call {
    /// Baton's router over gRPC.
    Generate,
    /// A decode worker, which prefills by itself.
    Decode,
    /// Completions over HTTP, as a stream.
    Stream,
    /// The same, at once.
    Whole,
    /// Chat completions over HTTP, as a stream.
    Chat,
}
