//! Room for large bodies, of requests and of answers: how many of their bytes may be held at once, by all clients
//! together. It must not know what they say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::error::HttpError;

/// Bytes of each body that need no room: there are no more of them than connections, and so ordinary
/// requests are read whatever large ones do.
const FREE: usize = 64 << 10;
/// Bytes of one answer that is kept until it is whole, at most.
pub(super) const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Hint to those who are refused.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Counts what is held.
#[derive(Debug)]
pub(super) struct Room {
    size: usize,
    taken: AtomicUsize,
}

/// What one body has taken of it, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    /// Room for so many bytes.
    pub(super) fn new(size: usize) -> Arc<Self> {
        let taken = AtomicUsize::new(0);
        Arc::new(Self { size, taken })
    }

    /// For a body of which nothing has been read.
    pub(super) fn begin(self: &Arc<Self>) -> Taken {
        let room = Arc::clone(self);
        Taken { room, bytes: 0 }
    }
}

impl Taken {
    /// Makes room for a body that has grown to so many bytes, or gives back what one that has shrunk leaves.
    ///
    /// # Errors
    /// There is none left; what the body has taken stays.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), HttpError> {
        let wanted = bytes.saturating_sub(FREE);
        let Some(more) = wanted.checked_sub(self.bytes) else {
            let less = self.bytes - wanted;
            self.room.taken.fetch_sub(less, Ordering::Relaxed);
            self.bytes = wanted;
            return Ok(());
        };
        if more == 0 {
            return Ok(());
        }
        let Room { size, taken } = &*self.room;
        let add = |taken: usize| taken.checked_add(more).filter(|sum| sum <= size);
        match taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => {
                self.bytes += more;
                Ok(())
            }
            Err(_) => Err(HttpError::for_now(
                format!("large bodies take all of {size} bytes, the limit; try again later"),
                RETRY_AFTER,
            )),
        }
    }
}

/// What an answer keeps until it is whole.
#[derive(Debug)]
pub(super) struct Kept {
    taken: Taken,
    bytes: usize,
}

impl Kept {
    /// Nothing yet.
    pub(super) fn new(taken: Taken) -> Self {
        Self { taken, bytes: 0 }
    }

    /// Keeps so many bytes more.
    ///
    /// # Errors
    /// They are too many for one answer, or for all.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), HttpError> {
        self.set(self.bytes + bytes)
    }

    /// Keeps so many bytes fewer.
    pub(super) fn give_back(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        // Less is always granted.
        let _ = self.taken.hold(self.bytes);
    }

    /// Keeps so many bytes in all.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), HttpError> {
        if bytes > MAX_ANSWER_BYTES {
            return Err(HttpError::invalid(
                None,
                format!(
                    "the answer takes more than {MAX_ANSWER_BYTES} bytes, the limit of what is kept until it is whole: stream it, or ask for fewer tokens or log-probabilities"
                ),
            ));
        }
        self.taken.hold(bytes)?;
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sec_05_large_bodies_share_the_room_and_give_it_back() {
        let room = Room::new(3 * FREE);
        let mut one = room.begin();
        for bytes in [0, 1, FREE] {
            one.hold(bytes).unwrap();
        }
        assert_eq!(room.taken.load(Ordering::Relaxed), 0, "small");
        one.hold(2 * FREE).unwrap();
        one.hold(3 * FREE).unwrap();
        let mut other = room.begin();
        other.hold(2 * FREE).unwrap();
        assert!(other.hold(2 * FREE + 1).is_err(), "full");
        room.begin().hold(FREE).unwrap();
        one.hold(2 * FREE).unwrap();
        other.hold(2 * FREE + 1).unwrap();
        drop(one);
        other.hold(3 * FREE).unwrap();
        drop(other);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0, "all is back");
    }
}
