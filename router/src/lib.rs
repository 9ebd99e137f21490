//! The router: admission, placement, retries, the public API.
//!
//! A request's way through this crate: `services::inference` or `http` → `services::begin` →
//! `request::admission` (validate,
//! tokenize, wait for a place) → `request::task` (plan, and plan again after a setback) →
//! `workers::plan` (split or local, and where) → `request::split` or `request::local` (the legs) →
//! `request::output` (tokens by position, text, stop strings) → `request::outbox` (to the client).
//!
//! It never executes a model and never sees pages: it must not know `engine`, `scheduler` or
//! `kv-transfer`.

#![forbid(unsafe_code)]

mod affinity;
mod answers;
mod clients;
mod config;
mod counters;
mod deadline;
mod error;
mod gate;
mod guard;
mod http;
mod keys;
mod lanes;
mod legs;
mod metrics;
mod model;
mod operations;
mod recent;
mod request;
mod serve;
mod services;
mod shared;
mod tokenizing;
mod workers;

pub use config::RouterConfig;
pub use deadline::time_given;
pub use error::{ConfigError, ServeError};
pub use http::HttpBody;
pub use keys::{ApiKeys, KeyList, new_key};
pub use lanes::Lanes;
pub use model::ServedModel;
pub use serve::Router;
