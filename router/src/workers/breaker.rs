//! Local quarantine of a worker after failures of its own: longer after each. It is half over when the
//! worker has told the router who it is, and over when one request that is let through succeeds.
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
    /// It has answered since.
    answered: bool,
    /// One request is let through.
    probing: bool,
    /// Somebody probes it, after this quarantine and those that follow.
    is_looked_after: bool,
    reason: String,
}

impl Breaker {
    /// Whether a request may go there.
    pub(crate) fn is_usable(&self, now: Instant) -> bool {
        !self.probing && (self.until.is_none() || self.is_half_over(now))
    }

    /// Whether the quarantine's time has passed and the worker has answered since.
    pub(crate) fn is_half_over(&self, now: Instant) -> bool {
        self.answered && self.until.is_some_and(|until| until <= now)
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
        *self = Self {
            is_looked_after: self.is_looked_after,
            ..Self::default()
        };
    }

    /// Whoever calls this first must probe the worker as long as [`Self::probe_due`] says so.
    pub(crate) fn look_after(&mut self) -> bool {
        !std::mem::replace(&mut self.is_looked_after, true)
    }

    /// When the worker is to be asked who it is; `None`, and nobody looks after it any more, once it has
    /// answered or needs no probe.
    pub(crate) fn probe_due(&mut self) -> Option<Instant> {
        let due = self.until.filter(|_| !self.answered);
        self.is_looked_after = due.is_some();
        due
    }

    /// The worker has answered after the quarantine that ended at `until`.
    pub(crate) fn answered(&mut self, until: Instant) {
        if self.until == Some(until) {
            self.answered = true;
        }
    }

    /// It has not: the quarantine goes on.
    pub(crate) fn unanswered(&mut self, now: Instant, until: Instant, reason: &str) {
        if self.until == Some(until) {
            let probing = self.probing;
            self.fail(now, Duration::ZERO, reason);
            self.probing = probing;
        }
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
            self.answered = false;
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
        assert!(!breaker.is_usable(first_end), "it has not answered");
        breaker.answered(first_end);
        assert!(!breaker.is_usable(start) && breaker.is_usable(first_end));
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
    fn rte_03_who_does_not_answer_stays_away_and_is_asked_ever_less_often() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        breaker.fail(start, Duration::ZERO, "reset");
        assert!(
            breaker.look_after() && !breaker.look_after(),
            "one is enough"
        );
        let first_end = breaker.probe_due().unwrap();
        breaker.unanswered(first_end, first_end, "refused");
        let second_end = breaker.probe_due().unwrap();
        assert!(second_end - first_end > Duration::from_millis(140));
        assert!(!breaker.is_usable(second_end));
        // An answer to an older question says nothing.
        breaker.answered(first_end);
        assert!(!breaker.is_usable(second_end));
        breaker.answered(second_end);
        assert!(breaker.is_usable(second_end) && breaker.is_half_over(second_end));
        assert_eq!(breaker.probe_due(), None);
        assert!(
            breaker.look_after(),
            "the next quarantine needs somebody again"
        );
        breaker.succeed();
        assert_eq!(breaker.probe_due(), None);
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
