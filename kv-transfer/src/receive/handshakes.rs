//! Places for connections whose handshake runs: few, each for a short time, and newcomers take the
//! oldest one. It must not know sockets or frames.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// Connections that may be in their handshake at once.
const MAX_HANDSHAKES: usize = 64;
/// Longest handshake: a sender says Hello as soon as it is connected.
const HANDSHAKE: Duration = Duration::from_secs(1);

/// The places of one listener, oldest first. Dropping it ends every handshake.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    running: VecDeque<oneshot::Sender<()>>,
}

impl Handshakes {
    /// A place for a new connection. If all are taken the oldest loses its own, so that those who say
    /// nothing keep nobody out.
    pub(super) async fn enter(&mut self) -> Place {
        if self.is_full() {
            // A Hello that has come by now is still heard.
            tokio::task::yield_now().await;
            if self.is_full() {
                self.running.pop_front();
            }
        }
        let (held, lost) = oneshot::channel();
        self.running.push_back(held);
        Place {
            lost,
            limit: Instant::now() + HANDSHAKE,
        }
    }

    fn is_full(&mut self) -> bool {
        self.running.retain(|held| !held.is_closed());
        self.running.len() >= MAX_HANDSHAKES
    }
}

/// One handshake's place; dropped when the handshake is over.
#[derive(Debug)]
pub(super) struct Place {
    lost: oneshot::Receiver<()>,
    limit: Instant,
}

impl Place {
    /// Runs a step of the handshake. `None` if its time is up or the place was lost; nothing of the
    /// handshake may run after that.
    pub(super) async fn hold<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = step => Some(done),
            () = tokio::time::sleep_until(self.limit) => None,
            _ = &mut self.lost => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[tokio::test]
    async fn the_oldest_unfinished_handshake_makes_room() {
        let mut handshakes = Handshakes::default();
        let mut places = Vec::new();
        for _ in 0..MAX_HANDSHAKES {
            places.push(handshakes.enter().await);
        }
        // A place that was given back is taken first.
        drop(places.swap_remove(5));
        let mut newest = handshakes.enter().await;
        assert_eq!(places[0].lost.try_recv(), Err(TryRecvError::Empty));
        let _next = handshakes.enter().await;
        assert_eq!(places[0].lost.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(places[1].lost.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(newest.hold(async { 7 }).await, Some(7));
        assert_eq!(handshakes.running.len(), MAX_HANDSHAKES);
    }
}
