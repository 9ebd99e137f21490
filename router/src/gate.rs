//! A door with a bounded number of places behind it and a bounded queue before it.
//!
//! It must not know what is done inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::error::RequestError;

/// Hint to those who are refused.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Counts who is inside and who waits.
#[derive(Debug)]
pub(crate) struct Gate {
    name: &'static str,
    places: Arc<Semaphore>,
    size: usize,
    waiting: AtomicUsize,
    max_waiting: usize,
    closes_soon: AtomicBool,
}

impl Gate {
    pub(crate) fn new(name: &'static str, size: usize, max_waiting: usize) -> Self {
        let places = Arc::new(Semaphore::new(size));
        Self {
            name,
            places,
            size,
            waiting: AtomicUsize::new(0),
            max_waiting,
            closes_soon: AtomicBool::new(false),
        }
    }

    /// Waits until `until` for so many places, all or none; more than there are never become free. Places
    /// go in the order of arrival.
    pub(crate) async fn enter(
        &self,
        count: usize,
        until: Instant,
    ) -> Result<OwnedSemaphorePermit, RequestError> {
        let count = count as u32;
        if let Ok(place) = Arc::clone(&self.places).try_acquire_many_owned(count) {
            return Ok(place);
        }
        let _waiting = Waiting::new(self)?;
        let places = Arc::clone(&self.places).acquire_many_owned(count);
        match tokio::time::timeout_at(until, places).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(RequestError::ShuttingDown),
            Err(_) => Err(refusal(format!("no place for {} became free", self.name))),
        }
    }

    /// Notes that the door is about to close: whoever asks first goes elsewhere.
    pub(crate) fn give_notice(&self) {
        self.closes_soon.store(true, Ordering::Relaxed);
    }

    /// Whether it is worth coming here.
    pub(crate) fn is_inviting(&self) -> bool {
        !self.closes_soon.load(Ordering::Relaxed) && !self.is_closed()
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&self) {
        self.places.close();
    }

    /// Whether nobody is let in any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.places.is_closed()
    }

    pub(crate) fn inside(&self) -> usize {
        self.size.saturating_sub(self.places.available_permits())
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

fn refusal(what: String) -> RequestError {
    RequestError::Overloaded {
        what,
        retry_after: RETRY_AFTER,
    }
}

struct Waiting<'a>(&'a Gate);

impl<'a> Waiting<'a> {
    fn new(gate: &'a Gate) -> Result<Self, RequestError> {
        if gate.places.is_closed() {
            return Err(RequestError::ShuttingDown);
        }
        let before = gate.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Self(gate);
        if before >= gate.max_waiting {
            let what = format!(
                "{before} wait for {} already, the limit is {}",
                gate.name, gate.max_waiting
            );
            return Err(refusal(what));
        }
        Ok(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
