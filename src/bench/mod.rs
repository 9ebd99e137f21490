//! `baton bench`: what a service does under load, and what the engine does beside the machine's limits.

mod engine;
mod plot;
mod serve;
mod statistics;

pub(crate) use engine::run as engine;
pub(crate) use serve::run as serve;
