//! Room for large bodies: how many of their bytes may be held at once, by all clients together. It must not
//! know what they say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::error::HttpError;

/// Bytes of each body that need no room: there are no more of them than connections, and so ordinary
/// requests are read whatever large ones do.
const FREE: usize = 64 << 10;
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
    /// Makes room for a body that has grown to so many bytes.
    ///
    /// # Errors
    /// There is none left; what the body has taken stays.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), HttpError> {
        let more = bytes.saturating_sub(FREE).saturating_sub(self.bytes);
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
        drop(one);
        other.hold(3 * FREE).unwrap();
        drop(other);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0, "all is back");
    }
}
