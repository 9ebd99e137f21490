//! What a sender keeps per receiver incarnation: its credit and, for shm, the mapping of its pool. It
//! must not know attempts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use baton_proto::ids::Incarnation;

use super::credit::Credit;
use crate::shm::PeerMemory;

/// A mapping that nobody has used for this long is given up: it would keep a dead peer's memory.
const IDLE: Duration = Duration::from_mins(1);

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
    shm_broken: bool,
    /// An idle watch is running.
    watched: bool,
}

impl Peers {
    /// The credit shared by all attempts to one receiver.
    pub(crate) fn credit(&self, incarnation: Incarnation, total: u64) -> Arc<Credit> {
        let mut peers = self.lock();
        // Peers without attempts or mapping say nothing any more.
        peers.retain(|_, peer| peer.watched || peer.shm_broken || peer.credit.strong_count() > 0);
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

    /// Keeps a new mapping until it has been idle for a while.
    pub(crate) fn keep_memory(
        self: &Arc<Self>,
        incarnation: Incarnation,
        memory: &Arc<PeerMemory>,
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
            let mut seen = 0;
            loop {
                tokio::time::sleep(IDLE).await;
                let Some(peers) = peers.upgrade() else { return };
                match peers.uses_unless_idle(incarnation, seen) {
                    Some(uses) => seen = uses,
                    None => return,
                }
            }
        });
    }

    /// Gives up a mapping whose use count is still `seen`; else tells the count.
    fn uses_unless_idle(&self, incarnation: Incarnation, seen: u64) -> Option<u64> {
        let mut peers = self.lock();
        let peer = peers.get_mut(&incarnation)?;
        let busy = peer
            .memory
            .as_ref()
            .is_some_and(|memory| Arc::strong_count(memory) > 1);
        if peer.uses != seen || busy {
            return Some(peer.uses);
        }
        peer.memory = None;
        peer.watched = false;
        None
    }

    /// Gives up the mapping of a peer whose connection broke: it may be dead.
    pub(crate) fn forget_memory(&self, incarnation: Incarnation) {
        if let Some(peer) = self.lock().get_mut(&incarnation) {
            peer.memory = None;
        }
    }

    /// The peer's pool cannot be mapped: shm is not tried again with this incarnation.
    pub(crate) fn break_shm(&self, incarnation: Incarnation) {
        self.lock().entry(incarnation).or_default().shm_broken = true;
    }

    pub(crate) fn shm_broken(&self, incarnation: Incarnation) -> bool {
        self.lock()
            .get(&incarnation)
            .is_some_and(|peer| peer.shm_broken)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Incarnation, Peer>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
