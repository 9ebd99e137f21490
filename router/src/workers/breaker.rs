//! Local quarantine of a worker after failures of its own: longer after each, ended by one probe
//! that succeeds.
//!
//! Clients' errors and overload never get here. It must not know what a failure is.

use std::time::Duration;

use rand::Rng as _;
use tokio::time::Instant;

/// First quarantine; each further failure doubles it.
const FIRST: Duration = Duration::from_millis(100);
/// Longest quarantine.
const LONGEST: Duration = Duration::from_secs(5);

/// Whether one worker is trusted now.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// Failures in a row, one per quarantine.
    failures: u32,
    until: Option<Instant>,
    probing: bool,
    reason: String,
}

impl Breaker {
    /// Whether a request may go there.
    pub(crate) fn is_usable(&self, now: Instant) -> bool {
        !self.probing && self.until.is_none_or(|until| until <= now)
    }

    /// When the quarantine ends, and why it began; `None` when there is none.
    pub(crate) fn quarantine(&self) -> Option<(Instant, &str)> {
        self.until.map(|until| (until, self.reason.as_str()))
    }

    /// A request goes there. True if it is the one probe after a quarantine: until its end is told
    /// by one of the three methods below, no other may follow.
    pub(crate) fn enter(&mut self) -> bool {
        self.probing = self.until.is_some();
        self.probing
    }

    /// The worker answered.
    pub(crate) fn succeed(&mut self) {
        *self = Self::default();
    }

    /// The probe ended without saying anything about the worker.
    pub(crate) fn abandon_probe(&mut self) {
        self.probing = false;
    }

    /// The worker failed. `least` is for failures that are known to last. Requests that fail
    /// together count once. True if a quarantine begins.
    pub(crate) fn fail(&mut self, now: Instant, least: Duration, reason: &str) -> bool {
        let begins = self.probing || self.until.is_none_or(|until| until <= now);
        self.probing = false;
        if begins {
            self.failures = self.failures.saturating_add(1);
            let doubled = FIRST
                .saturating_mul(1 << (self.failures - 1).min(10))
                .min(LONGEST);
            let jittered = doubled.mul_f64(rand::rng().random_range(0.75..=1.25));
            self.until = Some(now + jittered.max(least));
            reason.clone_into(&mut self.reason);
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rte_03_a_quarantine_grows_and_one_probe_ends_it() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        assert!(breaker.is_usable(start) && !breaker.enter());
        assert!(breaker.fail(start, Duration::ZERO, "reset"));
        assert!(
            !breaker.fail(start, Duration::ZERO, "reset"),
            "failures together count once"
        );
        assert!(!breaker.is_usable(start));
        assert_eq!(breaker.quarantine().unwrap().1, "reset");
        let (first_end, _) = breaker.quarantine().unwrap();
        assert!(breaker.is_usable(first_end));
        assert!(
            breaker.enter() && !breaker.is_usable(first_end),
            "one probe at a time"
        );
        breaker.abandon_probe();
        assert!(
            breaker.is_usable(first_end),
            "a probe that says nothing leaves it half-open"
        );
        assert!(breaker.enter());
        assert!(breaker.fail(first_end, Duration::ZERO, "again"));
        let (second_end, _) = breaker.quarantine().unwrap();
        assert!(
            second_end - first_end > Duration::from_millis(140),
            "doubled, less jitter"
        );
        assert!(breaker.enter());
        breaker.succeed();
        assert!(breaker.is_usable(start) && breaker.quarantine().is_none());
    }

    #[test]
    fn quarantines_are_bounded() {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            breaker.fail(now, Duration::ZERO, "x");
            let (until, _) = breaker.quarantine().unwrap();
            assert!(until - now <= LONGEST.mul_f64(1.25));
            now = until;
        }
        breaker.fail(now, Duration::from_mins(1), "fenced");
        assert!(breaker.quarantine().unwrap().0 - now >= Duration::from_mins(1));
    }
}
