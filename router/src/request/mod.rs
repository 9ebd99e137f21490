//! One request, from admission to its last event. The task owns both legs: dropping it cancels them.
//!
//! It must not know services beyond the messages it sends.

mod admission;
mod ending;
mod grant;
mod local;
mod outbox;
mod output;
mod prefill_only;
mod prompt;
mod receipt;
mod resume;
mod setback;
mod split;
mod task;
mod trace;

pub(crate) use admission::{Admission, Prepared, is_harmless};
pub(crate) use ending::Ending;
pub(crate) use outbox::ResponseStream;
pub(crate) use task::start;
pub(crate) use trace::RequestTrace;
