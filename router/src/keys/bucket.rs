//! Tokens per minute, as a bucket that fills steadily. Pure: the time is given. It must not know whose.

use std::time::Duration;

use tokio::time::Instant;

const MINUTE: f64 = 60.0;
/// Of a token: what sums of small fillings may lack of the whole.
const ROUNDING: f64 = 1e-6;

/// A bucket that holds a minute's tokens. What is owed (completions are counted as they come) keeps it
/// below zero until it has filled again.
#[derive(Debug)]
pub(super) struct Bucket {
    per_minute: f64,
    balance: f64,
    at: Instant,
}

impl Bucket {
    /// Full.
    pub(super) fn new(per_minute: u64, now: Instant) -> Self {
        Self {
            per_minute: per_minute as f64,
            balance: per_minute as f64,
            at: now,
        }
    }

    /// Changes the rate; what was used stays used.
    pub(super) fn set_rate(&mut self, per_minute: u64, now: Instant) {
        self.fill(now);
        let used = self.per_minute - self.balance;
        self.per_minute = per_minute as f64;
        self.balance = self.per_minute - used;
    }

    /// Takes `tokens` if they are there (of more than a minute's, a full bucket is asked for), else says
    /// after how long they will be.
    pub(super) fn try_take(&mut self, tokens: u64, now: Instant) -> Result<(), Duration> {
        self.fill(now);
        let needed = (tokens as f64).min(self.per_minute);
        let missing = needed - self.balance;
        if missing > ROUNDING {
            return Err(Duration::from_secs_f64(missing * MINUTE / self.per_minute));
        }
        self.balance -= tokens as f64;
        Ok(())
    }

    /// Takes `tokens`, there or not.
    pub(super) fn take(&mut self, tokens: u64, now: Instant) {
        self.fill(now);
        self.balance -= tokens as f64;
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.balance = (self.balance + passed * self.per_minute / MINUTE).min(self.per_minute);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_steadily_and_pays_its_debts() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut bucket = Bucket::new(60, start);
        assert_eq!(bucket.try_take(50, start), Ok(()));
        assert_eq!(bucket.try_take(20, start), Err(Duration::from_secs(10)));
        assert_eq!(bucket.try_take(20, after(10)), Ok(()));
        // Completions beyond what is there: later requests wait for them.
        bucket.take(30, after(10));
        assert_eq!(bucket.try_take(1, after(10)), Err(Duration::from_secs(31)));
        assert_eq!(bucket.try_take(1, after(41)), Ok(()));
        // More than a minute holds goes through a full bucket alone, and is owed.
        assert_eq!(bucket.try_take(600, after(41)), Err(Duration::from_mins(1)));
        assert_eq!(bucket.try_take(600, after(101)), Ok(()));
        assert_eq!(
            bucket.try_take(1, after(101)),
            Err(Duration::from_secs(541))
        );
        // It never holds more than a minute's worth, and time does not run backwards.
        let mut bucket = Bucket::new(60, after(100));
        assert_eq!(bucket.try_take(60, start), Ok(()));
        assert_eq!(bucket.try_take(60, after(10_000)), Ok(()));
        assert!(bucket.try_take(1, after(10_000)).is_err());
    }

    #[test]
    fn a_new_rate_keeps_what_was_used() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100, start);
        bucket.take(60, start);
        bucket.set_rate(60, start);
        assert_eq!(bucket.try_take(1, start), Err(Duration::from_secs(1)));
    }
}
