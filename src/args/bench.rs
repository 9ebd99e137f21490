//! Arguments of the measuring commands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::numbers::finite_f64;
use super::security::AskingSecurityArgs;
use super::{Format, KvDtypeArg};

/// Measuring a running service, or the engine alone.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Send load through the router and report TTFT, ITL, throughput and goodput.
    Serve(Box<BenchServeArgs>),
    /// Measure the engine on this machine: prefill, decode, shares of the machine's ceilings, memory.
    Engine(BenchEngineArgs),
}

/// Load on a running service.
///
/// Closed loop by default (--concurrency requests at once); --rate makes it an open loop with Poisson
/// arrivals; --steady N with --inject RATE keeps N streams going and injects long prompts beside them.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BenchServeArgs {
    /// Router to load [default: 127.0.0.1:7070].
    #[arg(long, env = "BATON_CONNECT", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connect: Option<String>,
    /// Requests to send [default: 64].
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<u32>,
    /// Closed loop: requests at once [default: 4].
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<u32>,
    /// Open loop: mean arrivals per second (Poisson).
    #[arg(long, value_name = "PER_SECOND", value_parser = finite_f64)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    /// Prompt lengths in tokens: N, MIN-MAX (uniform) or MEAN~SD (log-normal) [default: 128-512].
    #[arg(long, value_name = "DIST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_tokens: Option<String>,
    /// Completion lengths in tokens, same notation [default: 64; 1024 with --steady].
    #[arg(long, value_name = "DIST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output_tokens: Option<String>,
    /// Keep this many endless streams going for --duration instead.
    #[arg(long, value_name = "N", conflicts_with_all = ["rate", "concurrency"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steady: Option<u32>,
    /// Beside --steady: inject this many long prompts per second, evenly spaced.
    #[arg(long, value_name = "PER_SECOND", requires = "steady", value_parser = finite_f64)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inject: Option<f64>,
    /// Prompt lengths of the injected requests [default: 1024-2000].
    #[arg(long, value_name = "DIST", requires = "inject")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inject_prompt_tokens: Option<String>,
    /// Completion lengths of the injected requests [default: 8].
    #[arg(long, value_name = "DIST", requires = "inject")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inject_output_tokens: Option<String>,
    /// Beside --inject: this many rounds, each first the streams alone, then with injected prompts, and a
    /// comparison of the two.
    #[arg(long, value_name = "N", requires = "inject")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rounds: Option<u32>,
    /// Seconds of --steady, and of each half of a round [default: 40].
    #[arg(long, value_name = "SECONDS", requires = "steady", value_parser = finite_f64)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration: Option<f64>,
    /// Seed of lengths, arrivals and prompts; repeating one finds its prompts cached [default: random, reported].
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    /// Goodput counts requests whose TTFT is within this.
    #[arg(long, value_name = "MS", value_parser = finite_f64)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttft_target_ms: Option<f64>,
    /// Goodput counts requests whose mean ITL is within this.
    #[arg(long, value_name = "MS", value_parser = finite_f64)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) itl_target_ms: Option<f64>,
    /// How to print [default: text].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<Format>,
    /// Also write every gap between tokens to this CSV file: its end in seconds since the run's start, the
    /// gap in milliseconds, the request's number, whether it was a steady stream, the round, and whether
    /// prompts were injected.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gaps: Option<PathBuf>,
    /// Also draw every gap over time into this SVG file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: AskingSecurityArgs,
}

/// A part of what the engine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EnginePart {
    /// Prompts of 128, 512 and 2,048 tokens.
    Prefill,
    /// 1 to 32 streams at 256 and 2,048 tokens of context.
    Decode,
}

/// Another engine to measure beside ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum PeerArg {
    /// llama.cpp; `make bench-peers` builds it.
    #[value(name = "llama.cpp")]
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// vLLM on the CPU, in bf16; `make bench-vllm` installs it.
    #[value(name = "vllm")]
    #[serde(rename = "vllm")]
    Vllm,
}

/// The engine alone, in this process.
///
/// Every round runs each kind of work once and measures the machine's ceilings between them, so that
/// shares compare what the same minutes allowed. Figures are medians of the rounds.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BenchEngineArgs {
    /// A GGUF file or a Hugging Face directory.
    #[arg(long, env = "BATON_MODEL", value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<PathBuf>,
    /// Compute threads [default: as many as there are CPUs].
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<usize>,
    /// Element type of K and V [default: bf16].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_dtype: Option<KvDtypeArg>,
    /// Rounds, of which medians are taken [default: 5].
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rounds: Option<u32>,
    /// Measure only this part [default: both].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) only: Option<EnginePart>,
    /// Also measure another engine, in turn with ours, and report ratios: on the file as it is, and on the
    /// best of the forms it can be converted to.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<PeerArg>,
    /// With --peer: the Python that has its library [default: where `make bench-peers` or `make
    /// bench-vllm` puts it].
    #[arg(long, env = "BATON_PEER_PYTHON", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_python: Option<PathBuf>,
    /// Also draw throughput against streams and prefill against length into this SVG file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plot: Option<PathBuf>,
    /// How to print [default: text].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<Format>,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) json: bool,
}
