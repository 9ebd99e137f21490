//! Every metric there is: name, kind, labels, who shows it, and what it says. `docs/metrics.md` is this list.
//!
//! It must not know where figures come from.

use std::marker::PhantomData;

use super::label::{Label, Values};

/// Upper bounds of times, in seconds: fine below 10 ms, where ITL and hand-offs are, and up to minutes.
pub(super) const SECONDS: &[f64] = &[
    0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.000_75, 0.001, 0.001_5, 0.002, 0.003, 0.004, 0.005,
    0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];
/// Upper bounds of sizes.
pub(super) const SIZES: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
    16_384.0, 65_536.0,
];

/// What kind of figure a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the process lives.
    Counter,
    /// As it is now.
    Gauge,
    /// Distribution of times in seconds.
    Timing,
    /// Distribution of sizes.
    Size,
}

/// Who shows a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Every process.
    Everywhere,
    /// Routers.
    Router,
    /// Prefill and decode workers.
    Worker,
    /// Routers and workers, each of its own requests and pages.
    Gateway,
}

/// One metric, in words.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What kind it is.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [Label],
    /// Who shows it.
    pub shown: Shown,
    /// What it says.
    pub help: &'static str,
}

/// A metric with `N` labels, of the kind `K`.
#[derive(Debug)]
pub struct Name<K, const N: usize> {
    pub(super) text: &'static str,
    pub(super) labels: [Label; N],
    kind: PhantomData<K>,
}

/// Marks names of counters.
#[derive(Debug)]
pub enum Counter {}
/// Marks names of gauges.
#[derive(Debug)]
pub enum Gauge {}
/// Marks names of distributions of times.
#[derive(Debug)]
pub enum Timing {}
/// Marks names of distributions of sizes.
#[derive(Debug)]
pub enum Size {}

macro_rules! metrics {
    ($($kind:ident $id:ident $name:literal $shown:ident [$($label:ident),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: Name<$kind, { let labels: &[&str] = &[$(stringify!($label)),*]; labels.len() }> = Name {
                text: $name,
                labels: [$($label),*],
                kind: PhantomData,
            };
        )*

        /// All of them.
        pub const ALL: &[Row] = &[$(Row {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            shown: Shown::$shown,
            help: $help,
        }),*];
    };
}

/// What HTTP clients may call, as the label `route` has it; a path below one that ends in `/` is its own.
pub const ROUTES: [&str; 12] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/",
    "/tokenize",
    "/detokenize",
    "/health",
    "/health/live",
    "/metrics",
    "/openapi.json",
    "/ui",
    "/ui/",
];
/// Classes of HTTP's status codes.
pub const STATUSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

const API: Label = Label::new("api", Values::OneOf(&["grpc", "http"]));
const MODEL: Label = Label::new("model", Values::Own);
const MODEL_NAME: Label = Label::new("model_name", Values::Own);
const OUTCOME: Label = Label::new(
    "outcome",
    Values::OneOf(&["ok", "cancelled", "invalid", "refused", "error"]),
);
const CODE: Label = Label::new("code", Values::Reason);
const ROUTE: Label = Label::new("route", Values::OneOf(&ROUTES));
const STATUS: Label = Label::new("status", Values::OneOf(&STATUSES));
const PHASE: Label = Label::new("phase", Values::OneOf(&["prefill", "hand_off"]));
const PLACEMENT: Label = Label::new(
    "placement",
    Values::OneOf(&["split", "local", "prefill_only"]),
);
const REASON: Label = Label::new("reason", Values::Reason);
const ROLE: Label = Label::new("role", Values::OneOf(&["router", "prefill", "decode"]));
const WORKER_STATE: Label = Label::new(
    "state",
    Values::OneOf(&["ready", "draining", "quarantined", "incompatible"]),
);
const PAGE_STATE: Label = Label::new(
    "state",
    Values::OneOf(&["free", "cached", "live", "granted", "quarantined"]),
);
const TRANSFER_END: Label = Label::new(
    "outcome",
    Values::OneOf(&["committed", "revoked", "failed"]),
);
const DIRECTION: Label = Label::new("direction", Values::OneOf(&["sent", "received"]));
const DROPPED: Label = Label::new("reason", Values::OneOf(&["late", "duplicate", "malformed"]));
const SPAN_END: Label = Label::new("outcome", Values::OneOf(&["exported", "dropped", "failed"]));
const VERSION: Label = Label::new("version", Values::Own);
const WORKER: Label = Label::new("worker", Values::Own);
const INCARNATION: Label = Label::new("incarnation", Values::Own);
const BLOCK_SIZE: Label = Label::new("block_size", Values::Own);
const NUM_GPU_BLOCKS: Label = Label::new("num_gpu_blocks", Values::Own);
const CACHE_DTYPE: Label = Label::new("cache_dtype", Values::Own);

metrics! {
    Gauge BUILD_INFO "baton_build_info" Everywhere [VERSION, ROLE] "Always 1; the labels say what runs.";
    Gauge DRAINING "baton_draining" Everywhere [] "1 while nothing new is accepted.";
    Counter TRACE_SPANS "baton_trace_spans_total" Everywhere [SPAN_END] "Spans of traces: given to the collector, dropped for want of room, refused by the collector.";
    Gauge RESIDENT_MEMORY "process_resident_memory_bytes" Everywhere [] "Resident memory in bytes, shared memory included.";
    Counter CPU_SECONDS "process_cpu_seconds_total" Everywhere [] "User and system time of all threads in whole seconds.";
    Gauge OPEN_FDS "process_open_fds" Everywhere [] "Open file descriptors.";
    Gauge MAX_FDS "process_max_fds" Everywhere [] "Most file descriptors that may be open.";
    Gauge START_TIME "process_start_time_seconds" Everywhere [] "Start of the process in seconds since 1970.";

    Counter REQUESTS "baton_requests_total" Router [API, MODEL, OUTCOME, CODE] "Requests that have ended; whoever asks for a model that is not served has the model `other`.";
    Gauge REQUESTS_RUNNING "baton_requests_running" Router [] "Requests being served.";
    Gauge REQUESTS_WAITING "baton_requests_waiting" Router [] "Requests waiting for a place.";
    Counter HTTP_REQUESTS "baton_http_requests_total" Router [ROUTE, STATUS] "Calls over HTTP by endpoint and class of status; unknown paths are `other`.";
    Counter CALLERS_REFUSED "baton_callers_refused_total" Router [] "Calls without the certificate or API key that they need.";
    Counter SLOW_READERS "baton_slow_readers_total" Router [] "Requests given up because the client took nothing until the write deadline.";
    Timing TTFT "baton_ttft_seconds" Router [] "From a request's receipt to its first token, of requests that got one.";
    Timing ITL "baton_itl_seconds" Router [] "Every single gap between two tokens of one choice.";
    Timing REQUEST "baton_request_seconds" Router [] "From receipt to end, of requests that ended well.";
    Timing ADMISSION "baton_admission_seconds" Router [] "Validation, tokenizing and the wait for a place, from receipts.";
    Timing QUEUE "baton_queue_seconds" Router [] "Wait of prompts in their worker's queue, from receipts.";
    Timing PREFILL "baton_prefill_seconds" Router [] "Computing of prompts, from receipts.";
    Timing GRANT_WAIT "baton_grant_wait_seconds" Router [] "Wait of computed pages for a grant, from receipts of hand-offs.";
    Timing TRANSFER "baton_transfer_seconds" Router [] "From the first byte sent to the acknowledgement of all, from receipts of hand-offs.";
    Timing LANDING "baton_landing_seconds" Router [] "From landed pages to the decode worker's first step with them, from receipts of hand-offs.";
    Counter PROMPT_TOKENS "baton_prompt_tokens_total" Router [] "Prompt tokens of requests that got a token.";
    Counter PROMPT_TOKENS_CACHED "baton_prompt_tokens_cached_total" Router [PHASE] "Prompt tokens that a worker held already: not computed, or not transferred.";
    Counter COMPLETION_TOKENS "baton_completion_tokens_total" Router [] "Completion tokens emitted.";
    Counter ATTEMPTS "baton_attempts_total" Router [PLACEMENT, REASON] "Placement decisions, several per request after setbacks.";
    Counter RETRIES "baton_retries_total" Router [] "Attempts planned anew after a worker's failure or refusal.";
    Counter RESUMES "baton_resumes_total" Router [] "Attempts that went on after tokens which the client had been sent.";
    Counter GRANT_RETRIES "baton_grant_retries_total" Router [] "Grants replaced before their pages had landed.";
    Counter WORKER_REFUSALS "baton_worker_refusals_total" Router [ROLE] "Legs that workers refused for now.";
    Counter QUARANTINES "baton_quarantines_total" Router [] "Failures that quarantined a worker.";
    Counter TOKENS_DROPPED "baton_tokens_dropped_total" Router [] "Tokens of positions that had been sent, or of choices that had ended.";
    Counter TOKENS_CONTRADICTED "baton_tokens_contradicted_total" Router [] "Dropped tokens that were not those sent before: workers disagree.";
    Gauge WORKERS "baton_workers" Router [ROLE, WORKER_STATE] "Known workers.";
    Gauge WORKER_REPORT_AGE "baton_worker_report_age_seconds" Router [ROLE] "Age of the oldest load report among the workers of a role; 0 without workers.";
    Counter LOAD_REPORTS_REFUSED "baton_load_reports_refused_total" Router [] "Load reports of present workers that made no sense.";
    Gauge MEMBERSHIP_AGE "baton_membership_age_seconds" Router [] "Time since etcd has last answered; 0 without etcd.";
    Gauge MEMBERSHIP_ENTRIES "baton_membership_entries" Router [] "Valid entries in etcd; known workers without etcd.";
    Counter MEMBERSHIP_FULL_READS "baton_membership_full_reads_total" Router [] "Times that all of etcd's entries were read.";
    Counter MEMBERSHIP_INVALID "baton_membership_entries_invalid_total" Router [] "Entries in etcd that were skipped.";
    Counter MEMBERSHIP_FENCED "baton_membership_workers_fenced_total" Router [] "Times that somebody else answered where a worker should be.";

    Gauge WORKER_INFO "baton_worker_info" Worker [ROLE, WORKER, INCARNATION, MODEL] "Always 1; the labels say who this is.";
    Gauge SEQUENCES_WAITING "baton_sequences_waiting" Worker [] "Requests in the worker's queue, preempted ones included.";
    Gauge SEQUENCES_RUNNING "baton_sequences_running" Worker [] "Choices running.";
    Gauge WAITING_TOKENS "baton_waiting_tokens" Worker [] "Prompt tokens not computed yet.";
    Timing STEP "baton_step_seconds" Worker [] "Duration of steps.";
    Size STEP_TOKENS "baton_step_tokens" Worker [] "Tokens per step.";
    Size STEP_SEQUENCES "baton_step_sequences" Worker [] "Chunks and decode rows per step.";
    Gauge STEP_STILL "baton_step_still_seconds" Worker [] "How long the step thread has neither waited for work nor done a layer.";
    Counter TOKENS_SAMPLED "baton_tokens_sampled_total" Worker [] "Tokens sampled.";
    Counter PREEMPTIONS "baton_preemptions_total" Worker [] "Sequences whose pages were taken, to be computed again later.";
    Counter SEQUENCES_CANCELLED "baton_sequences_cancelled_total" Worker [] "Sequences that their owner gave up.";
    Counter PREFIX_HIT_TOKENS "baton_prefix_hit_tokens_total" Worker [] "Prompt tokens found in pages that were held already.";
    Counter LEGS_STARTED "baton_legs_started_total" Worker [] "Legs opened by routers.";
    Counter LEGS_ENDED "baton_legs_ended_total" Worker [REASON] "Legs that have ended, `done` if well.";
    Gauge PAGES "baton_pages" Worker [PAGE_STATE] "Pages by state; the five add up to the pool.";
    Gauge PAGE_POOL "baton_page_pool_pages" Worker [] "Pages of the pool.";
    Counter PAGES_EVICTED "baton_pages_evicted_total" Worker [] "Cached pages dropped for new ones.";
    Counter TRANSFERS_STARTED "baton_transfers_started_total" Worker [] "Transfers begun; on a decode worker, grants made.";
    Counter TRANSFERS "baton_transfers_total" Worker [TRANSFER_END] "Transfers that have ended.";
    Counter TRANSFER_FAILURES "baton_transfer_failures_total" Worker [REASON] "Failed transfers; `expired` are leases that ran out.";
    Counter TRANSFER_BYTES "baton_transfer_bytes_total" Worker [DIRECTION] "Bytes of pages sent, or landed.";
    Counter TRANSFER_EARLY_BYTES "baton_transfer_early_bytes_total" Worker [] "Bytes sent before their prompt's last step had ended: the part of the transfer that costs no time.";
    Counter FRAMES_DROPPED "baton_transfer_frames_dropped_total" Worker [DROPPED] "Frames of closed attempts, pieces that had landed before, and frames that could not be read.";
    Counter HANDSHAKES_REFUSED "baton_transfer_handshakes_refused_total" Worker [REASON] "Handshakes of transfers that were refused.";
    Counter TCP_FALLBACKS "baton_transfer_tcp_fallbacks_total" Worker [] "Transfers over tcp though shared memory was offered.";
    Counter TRANSFER_QUARANTINED "baton_transfer_pages_quarantined_total" Worker [] "Pages of broken transfers that a peer might still write.";
    Counter TRANSFER_FENCED "baton_transfer_pages_fenced_total" Worker [] "Pages that no peer can write any more.";

    Gauge VLLM_WAITING "vllm:num_requests_waiting" Gateway [MODEL_NAME] "Alias for gateways: requests waiting here.";
    Gauge VLLM_RUNNING "vllm:num_requests_running" Gateway [MODEL_NAME] "Alias for gateways: requests running here.";
    Gauge VLLM_CACHE_USAGE "vllm:kv_cache_usage_perc" Gateway [MODEL_NAME] "Alias for gateways: share of pages in use, 0 to 1; on a router, of all decode workers.";
    Gauge VLLM_CACHE_CONFIG "vllm:cache_config_info" Worker [MODEL_NAME, BLOCK_SIZE, NUM_GPU_BLOCKS, CACHE_DTYPE] "Alias for gateways: always 1; tokens per page and pages.";
}
