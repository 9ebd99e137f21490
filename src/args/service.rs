//! Arguments of the serving commands.

use std::num::NonZeroU8;
use std::path::PathBuf;

use baton_kv_cache::KvDtype;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::EtcdArgs;
use super::security::{ClientDoorArgs, ServingSecurityArgs};

/// The value of `--http-listen` and `--metrics-listen` that opens no such port.
pub(crate) const OFF: &str = "off";

/// Where metrics are shown.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
pub(crate) struct MetricsArgs {
    /// Address where Prometheus reads `/metrics`, see docs/metrics.md, or `off` [default: off].
    #[arg(long, env = "BATON_METRICS_LISTEN", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics_listen: Option<String>,
    /// Take any free port instead of one that cannot be had: the supervisor chose it itself.
    #[arg(long, hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics_any_port: Option<bool>,
}

/// Which transport moves pages between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TransportArg {
    /// Shared memory on the same host and user, else TCP.
    Auto,
    /// Shared memory only.
    Shm,
    /// TCP only.
    Tcp,
}

/// Element type of K and V in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KvDtypeArg {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// 8-bit codes with one scale per token and head.
    Int8,
}

impl From<KvDtypeArg> for KvDtype {
    fn from(argument: KvDtypeArg) -> Self {
        match argument {
            KvDtypeArg::Bf16 => Self::Bf16,
            KvDtypeArg::F16 => Self::F16,
            KvDtypeArg::F32 => Self::F32,
            KvDtypeArg::Int8 => Self::Int8,
        }
    }
}

/// The whole service on this machine.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpArgs {
    /// A GGUF file or a Hugging Face directory.
    #[arg(long, env = "BATON_MODEL", value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<PathBuf>,
    /// Prefill workers [default: 1].
    #[arg(long, env = "BATON_PREFILL", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefill: Option<u32>,
    /// Decode workers [default: 1].
    #[arg(long, env = "BATON_DECODE", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decode: Option<u32>,
    /// Address for clients; port 0 takes any free one [default: 127.0.0.1:7070].
    #[arg(long, env = "BATON_LISTEN", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<String>,
    /// Address for HTTP clients, see docs/http.md, or `off` [default: 127.0.0.1:8000].
    #[arg(long, env = "BATON_HTTP_LISTEN", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http_listen: Option<String>,
    /// Address where Prometheus reads the router's `/metrics`, see docs/metrics.md; workers have the ports
    /// that follow. Or `off` [default: 127.0.0.1:9464, or free ports].
    #[arg(long, env = "BATON_METRICS_LISTEN", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics_listen: Option<String>,
    /// `embedded`: workers register with the router; `etcd:HOST:PORT,…`: in etcd [default: embedded].
    #[arg(long, env = "BATON_MEMBERSHIP", value_name = "HOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) membership: Option<String>,
    /// Pages of each worker's pool [default: by free memory].
    #[arg(long, env = "BATON_PAGES", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pages: Option<u32>,
    /// Tokens per page [default: 16].
    #[arg(long, env = "BATON_PAGE_SIZE", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) page_size: Option<u32>,
    /// Compute threads of each prefill worker [default: a fair share of the CPUs].
    #[arg(long, env = "BATON_PREFILL_THREADS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefill_threads: Option<usize>,
    /// Compute threads of each decode worker [default: a fair share of the CPUs].
    #[arg(long, env = "BATON_DECODE_THREADS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decode_threads: Option<usize>,
    /// How pages move between workers [default: auto].
    #[arg(long, env = "BATON_TRANSPORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<TransportArg>,
    /// Element type of K and V [default: bf16].
    #[arg(long, env = "BATON_KV_DTYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_dtype: Option<KvDtypeArg>,
    /// Most tokens in one prefill step [default: 256].
    #[arg(long, env = "BATON_PREFILL_TOKEN_BUDGET", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefill_token_budget: Option<usize>,
    /// Most tokens in one decode step, local prefill chunks included [default: 128].
    #[arg(long, env = "BATON_DECODE_TOKEN_BUDGET", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decode_token_budget: Option<usize>,
    /// Prompts up to this many tokens are prefilled on the decode worker [default: 64].
    #[arg(long, env = "BATON_LOCAL_PREFILL_TOKENS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) local_prefill_tokens: Option<u32>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) door: ClientDoorArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: ServingSecurityArgs,
}

/// The router alone. It reads tokenizer and metadata of the model, never its weights.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouterArgs {
    /// A GGUF file or a Hugging Face directory.
    #[arg(long, env = "BATON_MODEL", value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<PathBuf>,
    /// Address for clients and, with embedded membership, for workers [default: 127.0.0.1:7070].
    #[arg(long, env = "BATON_LISTEN", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<String>,
    /// Address for HTTP clients, see docs/http.md, or `off` [default: off].
    #[arg(long, env = "BATON_HTTP_LISTEN", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http_listen: Option<String>,
    /// `embedded`: workers register here; `static:FILE`: a TOML list of worker addresses;
    /// `etcd:HOST:PORT,…`: workers register in etcd [default: embedded].
    #[arg(long, env = "BATON_MEMBERSHIP", value_name = "HOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) membership: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) etcd: EtcdArgs,
    /// Threads that serve connections, 1 to 255 [default: one for each processor, at least 2].
    #[arg(long, env = "BATON_ASYNC_THREADS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) async_threads: Option<NonZeroU8>,
    /// Prompts up to this many tokens are prefilled on the decode worker [default: 64].
    #[arg(long, env = "BATON_LOCAL_PREFILL_TOKENS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) local_prefill_tokens: Option<u32>,
    /// Requests running at once; more wait [default: 512].
    #[arg(long, env = "BATON_MAX_RUNNING", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_running: Option<usize>,
    /// Requests waiting; more are refused with a retry hint [default: 1024].
    #[arg(long, env = "BATON_MAX_WAITING", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_waiting: Option<usize>,
    /// Calls in progress of one client address; more are refused with a retry hint [default: 256].
    #[arg(long, env = "BATON_MAX_PER_CLIENT", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_per_client: Option<usize>,
    /// Bytes of HTTP bodies held at once, beyond the first 64 KiB of each; more are refused with a retry
    /// hint [default: 134217728].
    #[arg(long, env = "BATON_MAX_BODY_BYTES", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_body_bytes: Option<usize>,
    /// Longest wait for pages on any decode worker, milliseconds [default: 10000].
    #[arg(long, env = "BATON_GRANT_WAIT_MS", value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grant_wait_ms: Option<u64>,
    /// Longest silence of a worker, unless ten of its steps take longer, milliseconds, at least 1000
    /// [default: 2000].
    #[arg(long, env = "BATON_PROGRESS_TIMEOUT_MS", value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress_timeout_ms: Option<u64>,
    /// On SIGTERM: time in which requests are still taken, while health says not ready, milliseconds
    /// [default: 0].
    #[arg(long, env = "BATON_DRAIN_NOTICE_MS", value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drain_notice_ms: Option<u64>,
    /// Then: time for running requests to end, milliseconds [default: 30000].
    #[arg(long, env = "BATON_DRAIN_LIMIT_MS", value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drain_limit_ms: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) metrics: MetricsArgs,
    /// End when standard input closes: the supervisor holds it open.
    #[arg(long, hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_with_stdin: Option<bool>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) door: ClientDoorArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: ServingSecurityArgs,
}

/// A worker alone, prefill or decode.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerArgs {
    /// A GGUF file or a Hugging Face directory.
    #[arg(long, env = "BATON_MODEL", value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<PathBuf>,
    /// Address of the worker's services; port 0 takes any free one [default: 127.0.0.1:0].
    #[arg(long, env = "BATON_LISTEN", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<String>,
    /// HOST or HOST:PORT that others are told to use [default: the listening address].
    #[arg(long, env = "BATON_ADVERTISE", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advertise: Option<String>,
    /// TCP port on which pages arrive, on the listening address (decode workers) [default: any free one].
    #[arg(long, env = "BATON_TRANSFER_PORT", value_name = "PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transfer_port: Option<u16>,
    /// `embedded`: registers with --router; `static:FILE`: routers have the list, which is not read here;
    /// `etcd:HOST:PORT,…`: registers in etcd [default: embedded with --router, else static].
    #[arg(long, env = "BATON_MEMBERSHIP", value_name = "HOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) membership: Option<String>,
    /// Router to register with, for embedded membership.
    #[arg(long, env = "BATON_ROUTER", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) router: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) etcd: EtcdArgs,
    /// Seconds that a registration in etcd outlives its worker [default: 10].
    #[arg(long, env = "BATON_ETCD_LEASE_S", value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_lease_s: Option<u64>,
    /// Stable name, [A-Za-z0-9._-]{1,64} [default: role, host and process id].
    #[arg(long, env = "BATON_WORKER_ID", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) worker_id: Option<String>,
    /// Pages of the pool [default: by free memory].
    #[arg(long, env = "BATON_PAGES", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pages: Option<u32>,
    /// Tokens per page [default: 16].
    #[arg(long, env = "BATON_PAGE_SIZE", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) page_size: Option<u32>,
    /// Compute threads [default: all CPUs].
    #[arg(long, env = "BATON_THREADS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<usize>,
    /// CPUs to pin compute threads to, e.g. 0,1 or 4-7; give each worker its own [default: no pinning].
    #[arg(long, env = "BATON_CPUS", value_name = "LIST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpus: Option<String>,
    /// Most tokens in one step [default: 256 for prefill, 128 for decode].
    #[arg(long, env = "BATON_TOKEN_BUDGET", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_budget: Option<usize>,
    /// Most sequences in one step [default: 64].
    #[arg(long, env = "BATON_MAX_BATCH", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_batch: Option<usize>,
    /// How pages move between workers [default: auto].
    #[arg(long, env = "BATON_TRANSPORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<TransportArg>,
    /// Element type of K and V [default: bf16].
    #[arg(long, env = "BATON_KV_DTYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_dtype: Option<KvDtypeArg>,
    /// Instruction set of the kernels; all give the same bits [default: the fastest here].
    #[arg(long, env = "BATON_ISA", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) isa: Option<String>,
    /// Longest time that running requests get to end after SIGTERM, milliseconds [default: 30000].
    #[arg(long, env = "BATON_DRAIN_LIMIT_MS", value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drain_limit_ms: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) metrics: MetricsArgs,
    /// End when standard input closes: the supervisor holds it open.
    #[arg(long, hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_with_stdin: Option<bool>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: ServingSecurityArgs,
}
