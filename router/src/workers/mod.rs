//! The workers as the router sees them: who may be placed on, and what each is busy with.
//!
//! It must not know legs or requests.

mod breaker;
mod choose;
mod directory;
mod excluded;
mod plan;
mod probe;
mod slot;
mod wanted;
mod why;

pub(crate) use directory::{Directory, STATES, WorkerView};
pub(crate) use excluded::Excluded;
pub(crate) use plan::{NotPlaced, Plan};
pub(crate) use slot::{Slot, Worker};
pub(crate) use wanted::Wanted;
pub(crate) use why::Why;
