//! What a sender keeps per receiver incarnation: its credit and, for shm, the mapping of its pool. It
//! must not know attempts.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use baton_proto::ids::Incarnation;
use tokio::time::Instant;

use super::credit::Credit;
use crate::shm::{PeerMemory, has_ended};

/// A mapping that nobody has used for this long is given up.
const IDLE: Duration = Duration::from_mins(1);
/// How often an idle mapping's peer is looked for: the mapping keeps the memory of one that is dead.
const LOOK: Duration = Duration::from_secs(1);

/// After this long, shm is tried again with a peer whose pool could not be mapped, if it is still there.
const BROKEN: Duration = Duration::from_mins(10);

/// All receivers that this process sends to.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    inner: Mutex<HashMap<Incarnation, Peer>>,
}

#[derive(Debug, Default)]
struct Peer {
    credit: Weak<Credit>,
    memory: Option<Arc<PeerMemory>>,
    /// Rises with every use of the mapping.
    uses: u64,
    /// When its pool could not be mapped.
    shm_broken_at: Option<Instant>,
    /// An idle watch is running.
    watched: bool,
}

impl Peers {
    /// The credit shared by all attempts to one receiver.
    pub(crate) fn credit(&self, incarnation: Incarnation, total: u64) -> Arc<Credit> {
        let mut peers = self.lock();
        // Peers without attempts or mapping say nothing any more.
        peers.retain(|_, peer| peer.watched || peer.shm_broken() || peer.credit.strong_count() > 0);
        let peer = peers.entry(incarnation).or_default();
        peer.credit.upgrade().unwrap_or_else(|| {
            let credit = Arc::new(Credit::new(total));
            peer.credit = Arc::downgrade(&credit);
            credit
        })
    }

    pub(crate) fn memory(&self, incarnation: Incarnation) -> Option<Arc<PeerMemory>> {
        let mut peers = self.lock();
        let peer = peers.get_mut(&incarnation)?;
        peer.uses += 1;
        peer.memory.clone()
    }

    #[cfg(test)]
    pub(crate) fn maps(&self, incarnation: Incarnation) -> bool {
        let peers = self.lock();
        peers
            .get(&incarnation)
            .is_some_and(|peer| peer.memory.is_some())
    }

    /// Keeps a new mapping until it has been idle for a while, or nobody listens on the peer's socket.
    pub(crate) fn keep_memory(
        self: &Arc<Self>,
        incarnation: Incarnation,
        memory: &Arc<PeerMemory>,
        socket: PathBuf,
    ) {
        {
            let mut peers = self.lock();
            let peer = peers.entry(incarnation).or_default();
            peer.memory = Some(Arc::clone(memory));
            if std::mem::replace(&mut peer.watched, true) {
                return;
            }
        }
        let peers = Arc::downgrade(self);
        tokio::spawn(async move {
            let (mut seen, mut idle_since) = (0, Instant::now());
            loop {
                tokio::time::sleep(LOOK).await;
                let Some(peers) = peers.upgrade() else { return };
                let Some(uses) = peers.uses_of_idle(incarnation, seen) else {
                    return;
                };
                if uses != seen {
                    (seen, idle_since) = (uses, Instant::now());
                } else if (idle_since.elapsed() >= IDLE || has_ended(&socket))
                    && peers.give_up(incarnation, seen)
                {
                    return;
                }
            }
        });
    }

    /// How often a mapping has been used; counts one more while it is in use. `None`: it is not watched.
    fn uses_of_idle(&self, incarnation: Incarnation, seen: u64) -> Option<u64> {
        let mut peers = self.lock();
        let peer = peers.get_mut(&incarnation)?;
        if peer.is_busy() && peer.uses == seen {
            peer.uses += 1;
        }
        Some(peer.uses)
    }

    /// Gives up a mapping unless it has been used since `seen`.
    fn give_up(&self, incarnation: Incarnation, seen: u64) -> bool {
        let mut peers = self.lock();
        let Some(peer) = peers.get_mut(&incarnation) else {
            return true;
        };
        let idle = peer.uses == seen && !peer.is_busy();
        if idle {
            peer.memory = None;
            peer.watched = false;
        }
        idle
    }

    /// Gives up the mapping of a peer whose connection broke: it may be dead.
    pub(crate) fn forget_memory(&self, incarnation: Incarnation) {
        if let Some(peer) = self.lock().get_mut(&incarnation) {
            peer.memory = None;
        }
    }

    /// The peer's pool cannot be mapped: shm is not tried again with this incarnation for a while.
    pub(crate) fn break_shm(&self, incarnation: Incarnation) {
        self.lock().entry(incarnation).or_default().shm_broken_at = Some(Instant::now());
    }

    pub(crate) fn shm_broken(&self, incarnation: Incarnation) -> bool {
        self.lock().get(&incarnation).is_some_and(Peer::shm_broken)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Incarnation, Peer>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    fn shm_broken(&self) -> bool {
        (self.shm_broken_at).is_some_and(|at| at.elapsed() < BROKEN)
    }

    fn is_busy(&self) -> bool {
        self.memory
            .as_ref()
            .is_some_and(|memory| Arc::strong_count(memory) > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pool_that_could_not_be_mapped_is_remembered_for_a_while() {
        let peers = Peers::default();
        let [broken, other] = [1, 2].map(Incarnation);
        peers.break_shm(broken);
        assert!(peers.shm_broken(broken) && !peers.shm_broken(other));
        // Others coming and going do not lift it.
        drop(peers.credit(other, 1));
        assert!(peers.shm_broken(broken));
        let long_ago = Instant::now().checked_sub(BROKEN);
        peers.lock().entry(broken).or_default().shm_broken_at = long_ago;
        assert!(!peers.shm_broken(broken));
        drop(peers.credit(other, 1));
        assert_eq!(peers.lock().len(), 1, "incarnations do not come back");
    }
}
