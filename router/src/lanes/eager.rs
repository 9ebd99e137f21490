//! Looking for what comes soon instead of sleeping until it comes.
//!
//! To wake a thread that sleeps takes longer than most of what a router waits for when workers are quick: while
//! something is waited for, a lane looks again and again for a moment before it sleeps. Where that was in vain it does
//! so ever more rarely, so that with workers that compute for longer it costs next to nothing. It must not know what
//! is waited for.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Longest look, which is about what two sleeps and wakes cost.
const LOOK: Duration = Duration::from_micros(100);
/// Most looks that are left out after one in vain.
const MOST_SKIPPED: u32 = 127;

thread_local! {
    /// Of this thread, if it is a lane.
    static HERE: RefCell<Option<Arc<Eager>>> = const { RefCell::new(None) };
}

#[derive(Debug, Default)]
struct Eager(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Waits in progress.
    waits: usize,
    /// When the lane last ran out of work, if nothing that is waited for has come since.
    since: Option<Instant>,
    /// Looks to leave out, after the next one in vain and now.
    penalty: u32,
    skip: u32,
    watcher: Option<Waker>,
}

/// A wait for something that may come soon; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Soon(Option<Arc<Eager>>);

/// Begins to wait. Does nothing where no lane is.
pub(crate) fn soon() -> Soon {
    let here = HERE.with_borrow(Clone::clone);
    if let Some(eager) = &here {
        let mut state = eager.state();
        state.waits += 1;
        if state.since.is_none()
            && let Some(watcher) = state.watcher.take()
        {
            watcher.wake();
        }
    }
    Soon(here)
}

impl Soon {
    /// It has come.
    pub(crate) fn came(self) {
        if let Some(eager) = &self.0 {
            eager.state().came(Instant::now());
        }
    }
}

impl Drop for Soon {
    fn drop(&mut self) {
        if let Some(eager) = &self.0 {
            let mut state = eager.state();
            state.waits = state.waits.saturating_sub(1);
            if state.waits == 0 {
                state.since = None;
            }
        }
    }
}

/// Runs on each lane for as long as it lives.
pub(super) async fn watch() {
    let eager = Arc::new(Eager::default());
    HERE.set(Some(Arc::clone(&eager)));
    loop {
        poll_fn(|context| eager.state().poll_wanted(context)).await;
        // Lets everything else run first, then looks for what has come without a sleep.
        while eager.state().goes_on(Instant::now()) {
            tokio::task::yield_now().await;
        }
    }
}

impl Eager {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Until something is waited for that has not been looked for yet.
    fn poll_wanted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.waits > 0 && self.since.is_none() {
            return Poll::Ready(());
        }
        self.watcher = Some(context.waker().clone());
        Poll::Pending
    }

    /// Whether to look once more.
    fn goes_on(&mut self, now: Instant) -> bool {
        if self.waits == 0 {
            return false;
        }
        let Some(since) = self.since else {
            self.since = Some(now);
            let looks = self.skip == 0;
            self.skip = self.skip.saturating_sub(1);
            return looks;
        };
        if now.saturating_duration_since(since) < LOOK {
            return true;
        }
        self.penalty = (2 * self.penalty + 1).min(MOST_SKIPPED);
        self.skip = self.penalty;
        false
    }

    fn came(&mut self, now: Instant) {
        if let Some(since) = self.since.take()
            && now.saturating_duration_since(since) < LOOK
        {
            (self.penalty, self.skip) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits once for something that comes after so long; how many looks, a microsecond each, it cost.
    fn wait(state: &mut State, now: &mut Instant, comes_after: Duration) -> u32 {
        let comes_at = *now + comes_after;
        let mut looks = 0;
        state.waits += 1;
        while *now < comes_at && state.goes_on(*now) {
            looks += 1;
            *now += Duration::from_micros(1);
        }
        *now = comes_at.max(*now);
        state.came(*now);
        state.waits -= 1;
        looks
    }

    #[test]
    fn what_comes_soon_is_looked_for_every_time() {
        let (mut state, mut now) = (State::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(wait(&mut state, &mut now, LOOK / 2), 50);
        }
    }

    #[test]
    fn what_takes_longer_costs_next_to_nothing() {
        let (mut state, mut now) = (State::default(), Instant::now());
        let looks: u32 = (0..10_000)
            .map(|_| wait(&mut state, &mut now, 50 * LOOK))
            .sum();
        let share = f64::from(looks) / (10_000.0 * 50.0 * LOOK.as_micros() as f64);
        assert!(share < 0.0003, "{share}");
        assert!(looks > 0, "it tries again");
        // Once it comes soon again, that is noticed without a look.
        wait(&mut state, &mut now, LOOK / 2);
        assert_eq!(wait(&mut state, &mut now, LOOK / 2), 50);
    }

    #[test]
    fn nothing_is_looked_for_when_nothing_is_waited_for() {
        let mut state = State::default();
        assert!(!state.goes_on(Instant::now()));
        assert!(soon().0.is_none(), "no lane");
    }
}
