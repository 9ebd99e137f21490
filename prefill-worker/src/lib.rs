//! The prefill worker: computes prompts and hands them off.
//!
//! A request's way here: `service` (the RPC) → `leg` (checks, queue, events) → `hand_off` (grants,
//! commit) → `transfer`. It knows decode workers only through grants.

#![forbid(unsafe_code)]

mod hand_off;
mod leg;
mod progress;
mod service;
mod spans;
mod transfer;
mod worker;

pub use worker::PrefillWorker;
