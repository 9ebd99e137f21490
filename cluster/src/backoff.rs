//! Waiting longer after each failure, at random, so that peers do not come back in step.
//!
//! It must not know what is retried.

use std::time::Duration;

use rand::Rng as _;

/// Doubling delays with jitter between half and the whole of each.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts at `first`, doubles up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    /// The next delay.
    pub fn delay(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.most);
        whole.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Back to the first delay, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}
