//! An attempt as shared by its owner, its connection and its lease watch. The lock is what keeps late
//! bytes out of memory: whoever writes a granted page holds it and has seen the attempt open.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::attempt::ReceiveAttempt;
use super::ending::Ending;
use super::table::Table;

/// What waiters watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Status {
    pub(crate) closed: bool,
    pub(crate) fenced: bool,
}

/// One attempt.
#[derive(Debug)]
pub(crate) struct OpenAttempt {
    state: Mutex<ReceiveAttempt>,
    status: watch::Sender<Status>,
    table: Arc<Table>,
}

impl OpenAttempt {
    pub(crate) fn new(state: ReceiveAttempt, table: Arc<Table>) -> Self {
        Self {
            state: Mutex::new(state),
            status: watch::Sender::default(),
            table,
        }
    }

    /// Runs `change` under the lock, then tells the ledger of closed transfers, the counters and
    /// whoever waits about a close or a fence.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut ReceiveAttempt) -> R) -> R {
        // A panic under the lock leaves a state that is at worst open: its lease still ends it.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        let before = *self.status.borrow();
        let now = Status {
            closed: state.ending().is_some(),
            fenced: state.is_fenced(),
        };
        if before != now {
            self.table.note(&state, before, now);
            self.status.send_replace(now);
        }
        result
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.with(|state| state.ending().cloned())
    }

    pub(crate) fn status(&self) -> Status {
        *self.status.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Ends the attempt when its lease is over; returns once it is closed.
    pub(crate) async fn watch_lease(self: Arc<Self>) {
        let mut status = self.watch();
        loop {
            let deadline = self.with(|state| state.deadline());
            tokio::select! {
                _ = status.wait_for(|status| status.closed) => return,
                () = tokio::time::sleep_until(deadline.into()) => {
                    let now = tokio::time::Instant::now().into_std();
                    self.with(|state| state.expire(now));
                }
            }
        }
    }
}
