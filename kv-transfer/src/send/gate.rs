//! Whether an attempt may still touch pages. It must not know why not.

use std::sync::{Mutex, PoisonError};

/// Held shut or open; whoever reads local pages or writes remote ones does so inside [`Gate::pass`].
/// So once [`Gate::shut`] has returned, nothing of the attempt touches a page any more.
#[derive(Debug)]
pub(crate) struct Gate {
    open: Mutex<bool>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            open: Mutex::new(true),
        }
    }

    /// Runs `touch` if the gate is open, and keeps it open meanwhile.
    pub(crate) fn pass<R>(&self, touch: impl FnOnce() -> R) -> Option<R> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.then(touch)
    }

    /// Waits for whoever is inside (at most one slice of work), then shuts for good.
    pub(crate) fn shut(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}
