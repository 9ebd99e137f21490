//! Who hears of each step. It must not know what they make of it.

use std::time::Duration;

/// What a step was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepFigures {
    /// Tokens that it ran.
    pub tokens: usize,
    /// Chunks and decode rows.
    pub sequences: usize,
    /// How long it took.
    pub elapsed: Duration,
}

/// Hears of each step, on the step thread: it must not wait for anything.
pub trait StepObserver: Send {
    /// A step has ended.
    fn stepped(&self, step: StepFigures);
}
