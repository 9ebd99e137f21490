//! Router, workers and their transfers under virtual time, a simulated network and seeded faults.
//!
//! A seed is a scenario: a fleet, requests and faults ([`scenario`]). A [`run`] starts the product's own
//! router and workers ([`fleet`]) over a network in memory ([`network`]), with an engine whose tokens depend
//! on every byte of its pages ([`oracle`]), and compares what clients get with what is right. All randomness
//! of the process follows from the seed ([`chance`]), all timers are virtual and one thread runs
//! everything, so that a seed replays to the same event log.
//!
//! No shipped binary links this crate.

pub mod answer;
pub mod chance;
pub mod check;
pub mod client;
pub mod etcd;
pub mod etcd_faults;
pub mod faults;
pub mod fleet;
pub mod front;
pub mod log;
pub mod memory;
pub mod model;
pub mod network;
pub mod oracle;
pub mod planted;
pub mod run;
pub mod scenario;
