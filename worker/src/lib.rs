//! What both kinds of worker are made of: loading a model, identity and fingerprint, the gRPC server
//! with health and reflection, the check of every request at the door, load reports, registration,
//! drain.
//!
//! It knows neither grants nor hand-offs: those are what makes a worker a prefill or a decode worker,
//! and come in through [`Role`].

#![forbid(unsafe_code)]

mod door;
mod equipment;
mod error;
mod fingerprint;
mod leg;
mod leg_error;
mod load;
mod metrics;
mod options;
mod registration;
mod role;
mod run;
mod server;
mod service;
mod sizing;
mod spans;
mod tls_network;
mod token;
mod watchdog;
mod worker;

pub use door::Admitted;
pub use equipment::{Drive, Equipment, KvRegion, load_model};
pub use error::WorkerError;
pub use fingerprint::fingerprint;
pub use leg::{Leg, Outbound, OwnedSequence, SequenceEvents};
pub use leg_error::{LegError, REASON_KEY};
pub use options::{Membership, PoolSize, WorkerOptions};
pub use role::{Role, Slot};
pub use run::{BoundWorker, Loading, Source, Stage};
pub use sizing::available_memory;
pub use spans::{linked_span, span_ref};
pub use token::{from_generated, to_generated};
pub use worker::Worker;
