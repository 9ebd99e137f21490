//! Arguments of the commands that talk to a running service.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::Format;
use super::numbers::finite_f32;
use super::security::AskingSecurityArgs;

/// One request. Exactly one of --prompt, --chat, --prompt-file and --token-ids gives its input.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GenerateArgs {
    /// Router to ask [default: 127.0.0.1:7070].
    #[arg(long, env = "BATON_CONNECT", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connect: Option<String>,
    /// Raw prompt, continued as it is.
    #[arg(long, value_name = "TEXT", group = "input")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt: Option<String>,
    /// One user turn, put through the model's chat template.
    #[arg(long, value_name = "TEXT", group = "input")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chat: Option<String>,
    /// Raw prompt from a file; `-` is standard input.
    #[arg(long, value_name = "FILE", group = "input")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Prompt as token ids, e.g. 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', group = "input")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) token_ids: Vec<u32>,
    /// System turn before --chat.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system: Option<String>,
    /// Most completion tokens of each choice [default: what fits, at most 4096].
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<u32>,
    /// No end before this many completion tokens.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_tokens: Option<u32>,
    /// 0 is greedy [default: 0].
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite_f32)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<f32>,
    /// Keep the most likely tokens that together reach this probability [default: 1].
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite_f32)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_p: Option<f32>,
    /// Keep this many most likely tokens; 0 keeps all [default: 0].
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_k: Option<u32>,
    /// Drop tokens less likely than this share of the most likely one [default: 0].
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite_f32)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_p: Option<f32>,
    /// Subtracted once from tokens already in the completion, -2 to 2 [default: 0].
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite_f32)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) presence_penalty: Option<f32>,
    /// Subtracted per occurrence in the completion, -2 to 2 [default: 0].
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite_f32)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) frequency_penalty: Option<f32>,
    /// Divides logits of tokens already seen; 1 is off [default: 1].
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite_f32)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) repetition_penalty: Option<f32>,
    /// Seed of the random numbers; the same seed gives the same tokens [default: random, shown in the receipt].
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    /// String that ends the text and is not shown; up to four.
    #[arg(long, value_name = "S")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stop: Vec<String>,
    /// Independent choices [default: 1].
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) n: Option<u32>,
    /// Report log-probabilities of the chosen and of this many most likely tokens, 0 to 20; needs
    /// --format json.
    #[arg(long, value_name = "K")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<u32>,
    /// Report log-probabilities of the prompt's tokens, given those before, and of this many most likely
    /// ones in their place, 0 to 20; needs --format json.
    #[arg(long, value_name = "K")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<u32>,
    /// Go on past the model's end-of-sequence tokens.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ignore_eos: bool,
    /// Give up after this long [default: the router's limit].
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline_ms: Option<u64>,
    /// Text as it comes, or one JSON object per line [default: text].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<Format>,
    /// With text: print usage and receipt to standard error at the end.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) receipt: bool,
    /// Draw where the time went, on standard error at the end; with json, one more object.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) trace: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: AskingSecurityArgs,
}

/// Workers, roles, incarnations, queues and page ledgers.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatusArgs {
    /// Router to ask [default: 127.0.0.1:7070].
    #[arg(long, env = "BATON_CONNECT", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connect: Option<String>,
    /// How to print [default: text].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<Format>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: AskingSecurityArgs,
}

/// A request to draw.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceArgs {
    /// Router to ask [default: 127.0.0.1:7070].
    #[arg(long, env = "BATON_CONNECT", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connect: Option<String>,
    /// Id or label of a request that runs, or that has ended of late.
    #[arg(value_name = "REQUEST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<String>,
    /// How to print [default: text].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<Format>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: AskingSecurityArgs,
}

/// A worker to drain.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainArgs {
    /// Router to ask [default: 127.0.0.1:7070].
    #[arg(long, env = "BATON_CONNECT", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connect: Option<String>,
    /// Name of the worker, as `baton status` shows it.
    #[arg(value_name = "WORKER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) worker: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: AskingSecurityArgs,
}

/// What a probe asks of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HealthName {
    /// Whether it should be left alone.
    Live,
    /// Whether requests may come.
    Ready,
}

/// The health of one process.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HealthArgs {
    /// What to ask [default: ready].
    #[arg(value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<HealthName>,
    /// Router or worker to ask [default: 127.0.0.1:7070].
    #[arg(long, env = "BATON_CONNECT", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connect: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: AskingSecurityArgs,
}
