//! The gRPC services that the router offers, each a thin skin over the parts that do the work.

mod admin;
mod begin;
mod health;
mod inference;
mod metered;

pub(crate) use admin::Admin;
pub(crate) use begin::{Asker, Begun, begin};
pub(crate) use health::{health, keep_health, set_ready};
pub(crate) use inference::Inference;
pub(crate) use metered::Metered;
