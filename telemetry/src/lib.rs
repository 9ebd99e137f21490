//! What a process tells its operators: metrics as Prometheus text, and traces over OTLP.
//!
//! It knows the names and units of both and how they leave the process; it must not know requests, workers or
//! placement, which say what happened.

pub mod metrics;
pub mod traces;
