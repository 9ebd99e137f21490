//! The decode worker: grants pages, receives prompts into them and generates.
//!
//! A request's way here: `service` (the RPC) → `leg` (checks, local or remote prompt) → `granted`
//! (reserved pages until they land or are fenced) → `commit` (what came with the pages) → `tokens`
//! (the token stream). It knows prefill workers only through what arrives in its pages.

#![forbid(unsafe_code)]

mod commit;
mod granted;
mod leg;
mod service;
mod spans;
mod tokens;
mod worker;

pub use worker::DecodeWorker;
