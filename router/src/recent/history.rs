//! What happened in each of the last seconds. A request counts its tokens on its own and adds them once a
//! second, so that no token waits for another request's. It must not know which request a number is of.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::v1;
use tokio::time::Instant;

use super::Recent;
use super::bins::{BINS, Histogram, bin};

/// Seconds that are remembered.
const SECONDS: usize = 120;

/// The last seconds.
#[derive(Debug)]
pub(super) struct History {
    origin: Instant,
    /// Without gaps, oldest first, at most [`SECONDS`].
    seconds: Mutex<VecDeque<Second>>,
}

#[derive(Debug)]
pub(super) struct Second {
    number: u64,
    pub(super) received: u32,
    ended_ok: u32,
    ended_badly: u32,
    prompt_tokens: u64,
    completion_tokens: u64,
    ttft: Histogram,
    itl: Histogram,
}

/// Tokens of one request that have not been added yet.
#[derive(Debug)]
pub(crate) struct Pace {
    recent: Arc<Recent>,
    second: u64,
    tokens: u64,
    gaps: Histogram,
}

impl History {
    pub(super) fn new(origin: Instant) -> Self {
        Self {
            origin,
            seconds: Mutex::default(),
        }
    }

    pub(super) fn received(&self, prompt_tokens: u64) {
        self.now(|second| {
            second.received += 1;
            second.prompt_tokens += prompt_tokens;
        });
    }

    pub(super) fn ended(&self, well: bool) {
        self.now(|second| {
            second.ended_ok += u32::from(well);
            second.ended_badly += u32::from(!well);
        });
    }

    /// The last seconds for readers.
    pub(super) fn told(&self, limit: usize) -> Vec<v1::HistorySecond> {
        let limit = if limit == 0 { SECONDS } else { limit };
        self.told_at(self.second_at(Instant::now()), limit)
    }

    /// The last ones of those up to this one.
    pub(super) fn told_at(&self, second: u64, limit: usize) -> Vec<v1::HistorySecond> {
        // Brings it about, however quiet it is.
        self.change(second, |_| {});
        let seconds = self.lock();
        let skipped = seconds.len().saturating_sub(limit);
        seconds.iter().skip(skipped).map(Second::told).collect()
    }

    fn second_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_secs()
    }

    fn now(&self, change: impl FnOnce(&mut Second)) {
        self.change(self.second_at(Instant::now()), change);
    }

    /// Changes a second; what was in one that is forgotten counts for the oldest.
    pub(super) fn change(&self, second: u64, change: impl FnOnce(&mut Second)) {
        let mut seconds = self.lock();
        let newest = seconds.back().map(|newest| newest.number);
        let least = second.saturating_sub(SECONDS as u64 - 1);
        let first_new = newest.map_or(least, |newest| least.max(newest + 1));
        for new in first_new..=second {
            if seconds.len() >= SECONDS {
                seconds.pop_front();
            }
            seconds.push_back(Second::new(new));
        }
        while seconds.len() > 1 && seconds.front().is_some_and(|oldest| oldest.number < least) {
            seconds.pop_front();
        }
        let oldest = seconds.front().map_or(0, |oldest| oldest.number);
        let at = second.saturating_sub(oldest) as usize;
        if let Some(second) = seconds.get_mut(at) {
            change(second);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Second>> {
        self.seconds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Second {
    fn new(number: u64) -> Self {
        Self {
            number,
            received: 0,
            ended_ok: 0,
            ended_badly: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            ttft: [0; BINS],
            itl: [0; BINS],
        }
    }

    fn told(&self) -> v1::HistorySecond {
        v1::HistorySecond {
            second: self.number,
            received: self.received,
            ended_ok: self.ended_ok,
            ended_badly: self.ended_badly,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            ttft: Some(told(&self.ttft)),
            itl: Some(told(&self.itl)),
        }
    }
}

/// A histogram without the empty bins at its ends.
fn told(histogram: &Histogram) -> v1::LatencyBins {
    let is_used = |&count: &u32| count > 0;
    let Some(first) = histogram.iter().position(is_used) else {
        return v1::LatencyBins::default();
    };
    let end = histogram.iter().rposition(is_used).unwrap_or(first) + 1;
    v1::LatencyBins {
        first_bin: first as u32,
        counts: histogram[first..end].to_vec(),
    }
}

impl Pace {
    pub(super) fn new(recent: Arc<Recent>) -> Self {
        Self {
            recent,
            second: 0,
            tokens: 0,
            gaps: [0; BINS],
        }
    }

    /// Counts the first token of a request.
    pub(crate) fn first(&mut self, now: Instant, ttft: Duration) {
        let history = &self.recent.history;
        let second = history.second_at(now);
        history.change(second, |second| second.ttft[bin(ttft)] += 1);
    }

    /// Counts a token; `gap` is the time since the one before it in its choice.
    pub(crate) fn token(&mut self, now: Instant, gap: Option<Duration>) {
        let second = self.recent.history.second_at(now);
        if second != self.second {
            self.add();
            self.second = second;
        }
        self.tokens += 1;
        if let Some(gap) = gap {
            self.gaps[bin(gap)] += 1;
        }
    }

    fn add(&mut self) {
        if self.tokens == 0 {
            return;
        }
        let (tokens, gaps) = (std::mem::take(&mut self.tokens), &mut self.gaps);
        self.recent.history.change(self.second, |second| {
            second.completion_tokens += tokens;
            for (all, own) in second.itl.iter_mut().zip(gaps.iter_mut()) {
                *all += std::mem::take(own);
            }
        });
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.add();
    }
}
