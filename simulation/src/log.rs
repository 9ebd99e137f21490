//! What happened in a run, in order, at virtual times. It must not know what events mean.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// A shared event log.
#[derive(Debug, Clone)]
pub struct Log {
    start: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Log {
    /// An empty log that begins now. Needs a tokio runtime.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            lines: Arc::default(),
        }
    }

    /// Notes an event.
    pub fn note(&self, event: impl fmt::Display) {
        let at = self.start.elapsed();
        let line = format!("{:>10.3} {event}", at.as_secs_f64());
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}
