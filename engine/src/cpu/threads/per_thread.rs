//! Working memory of each thread of a team. It must not know what it is for.

use std::cell::UnsafeCell;

/// One value for each thread of a team.
pub(crate) struct PerThread<T>(Vec<UnsafeCell<T>>);

// SAFETY: `get`'s callers use only their own thread's value, so values move between threads at most.
unsafe impl<T: Send> Sync for PerThread<T> {}

impl<T> PerThread<T> {
    /// `threads` values.
    ///
    /// # Errors
    /// That of `make`.
    pub(crate) fn new<E>(
        threads: usize,
        mut make: impl FnMut() -> Result<T, E>,
    ) -> Result<Self, E> {
        let values = (0..threads).map(|_| make().map(UnsafeCell::new));
        Ok(Self(values.collect::<Result<_, E>>()?))
    }

    /// The value of `thread`.
    ///
    /// # Safety
    /// `thread` is the number that [`super::Threads::run`] gave the running task, and the value is not
    /// borrowed twice by it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get(&self, thread: usize) -> &mut T {
        // SAFETY: no other task runs with this number meanwhile.
        unsafe { &mut *self.0[thread].get() }
    }
}
