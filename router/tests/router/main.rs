//! The router against scripted workers: real sockets, one runtime per process, no engine.

mod admin;
mod api;
mod choices;
mod failures;
mod fake;
mod harness;
mod http_answers;
mod http_endings;
mod http_limits;
mod http_ready;
mod http_requests;
mod http_sampling;
mod http_streams;
mod http_tokens;
mod journey;
mod limits;
mod metrics;
mod placement;
mod prompt_logprobs;
mod raw;
mod recent;
mod resume;
mod streaming;
mod ui;
mod upgrade;
mod web;
