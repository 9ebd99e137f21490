//! The token-budget scheduler and the step loop that both kinds of worker run.
//!
//! The scheduler is pure: state and clock in, decision out. The step loop is its only owner and runs
//! on its own thread ([`on_thread`]). Neither knows networks, transfers or the router.
//!
//! A sequence's way: [`StepHandle::submit`] → queued → pages of the whole prompt reserved, `Scheduled` →
//! chunks → first tokens, `PromptDone` → decode rows, or pinned for the hand-off; and on a decode
//! worker [`StepHandle::reserve`] → granted → [`StepHandle::land`] → decode rows.

#![forbid(unsafe_code)]

mod admission;
mod config;
mod error;
mod event;
mod group;
mod handle;
mod inbox;
mod load;
mod mailbox;
mod observer;
mod outcome;
mod plan;
mod preempt;
mod progress;
mod pulse;
mod scheduler;
mod sequence;
mod spec;
mod step_loop;
#[cfg(test)]
mod tests;
mod transitions;

pub use config::SchedulerConfig;
pub use error::SequenceError;
pub use event::{FinishReason, ReservedPages, SequenceEvent, Token};
pub use handle::{StepHandle, on_thread, spawn, step_loop};
pub use load::LoadSnapshot;
pub use observer::{StepFigures, StepObserver};
pub use progress::{LayerProgress, ProgressFactory};
pub use spec::{AfterPrompt, ChoiceSoFar, SequenceId, SequenceSpec};
pub use step_loop::StepLoop;
