//! Bytes that one sender may have in flight to one receiver, over all its attempts. It must not know
//! what the bytes are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Shared by all attempts between this process and one receiver incarnation.
#[derive(Debug)]
pub(crate) struct Credit {
    total: u64,
    used: Mutex<u64>,
    changed: Notify,
}

impl Credit {
    pub(crate) fn new(total: u64) -> Self {
        Self {
            total,
            used: Mutex::new(0),
            changed: Notify::new(),
        }
    }

    /// What an attempt with `in_flight` bytes may add. No attempt may have more than half of the whole
    /// in flight, so that one stuck connection does not stall the others.
    pub(crate) fn available(&self, in_flight: u64) -> u64 {
        let free = self.total.saturating_sub(*self.lock());
        free.min((self.total / 2).saturating_sub(in_flight))
    }

    /// Takes `bytes`; `false` when another attempt was faster.
    fn take(&self, bytes: u64, must_bytes: u64) -> bool {
        let mut used = self.lock();
        let fits = used.checked_add(bytes).is_some_and(|sum| sum <= self.total);
        if fits || bytes <= must_bytes {
            *used += bytes;
            return true;
        }
        false
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            let mut used = self.lock();
            *used = used.saturating_sub(bytes);
            drop(used);
            self.changed.notify_waiters();
        }
    }

    /// Resolves when credit has come back; enable it before asking what is available.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one attempt has of the credit. Whatever ends the attempt, a panic too, gives it back.
#[derive(Debug)]
pub(crate) struct Share {
    credit: Arc<Credit>,
    taken: u64,
}

impl Share {
    /// Of nothing yet.
    pub(crate) fn new(credit: Arc<Credit>) -> Self {
        Self { credit, taken: 0 }
    }

    /// The whole.
    pub(crate) fn credit(&self) -> Arc<Credit> {
        Arc::clone(&self.credit)
    }

    /// What may be added.
    pub(crate) fn available(&self) -> u64 {
        self.credit.available(self.taken)
    }

    /// Takes `bytes`; `false` when another attempt was faster. With nothing taken, an attempt gets one
    /// `piece` in any case, so that nobody waits for ever.
    pub(crate) fn take(&mut self, bytes: u64, piece: u64) -> bool {
        let must = if self.taken == 0 { piece } else { 0 };
        let taken = self.credit.take(bytes, must);
        self.taken += if taken { bytes } else { 0 };
        taken
    }

    /// Gives `bytes` back, of what was taken.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        let bytes = bytes.min(self.taken);
        self.taken -= bytes;
        self.credit.give_back(bytes);
    }

    /// Gives everything back.
    pub(crate) fn give_all_back(&mut self) {
        self.give_back(self.taken);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_all_back();
    }
}
