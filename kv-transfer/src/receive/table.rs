//! The open attempts of a receiver, those closed lately, and what is in quarantine. Decides
//! handshakes. It must not know sockets.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use baton_proto::domain::Transport;
use baton_proto::ids::{Attempt, Incarnation, TransferId, TransferSecret};

use super::Reservation;
use super::attempt::{Peer, ReceiveAttempt};
use super::ending::Ending;
use super::open_attempt::{OpenAttempt, Status};
use crate::counters::{Counters, add};
use crate::error::{CloseReason, Refusal, TransferError};
use crate::frame::{AttemptKey, Hello, Welcome};
use crate::identity::Identity;
use crate::page_access::PageMemory;

/// Most attempts open at once; each holds pages, so the pool is the usual limit.
const MAX_OPEN: usize = 4096;
/// Closed transfers that are still told from unknown ones.
const MAX_RECENT: usize = 1024;

/// Everything a receiver's connections share.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) identity: Identity,
    pub(crate) memory: PageMemory,
    pub(crate) counters: Arc<Counters>,
    pub(crate) credit_bytes: usize,
    lease: Duration,
    quarantine_cap_pages: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    open: HashMap<TransferId, Arc<OpenAttempt>>,
    recent: VecDeque<(TransferId, CloseReason)>,
    quarantined: HashMap<Incarnation, u32>,
    shut: bool,
}

/// What the socket itself tells of a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketFacts {
    pub(crate) transport: Transport,
    /// Only meaningful for shm.
    pub(crate) same_user: bool,
}

impl Table {
    pub(crate) fn new(
        identity: Identity,
        memory: PageMemory,
        lease: Duration,
        credit_bytes: usize,
        quarantine_cap_pages: u32,
    ) -> Self {
        Self {
            identity,
            memory,
            counters: Arc::default(),
            credit_bytes,
            lease,
            quarantine_cap_pages,
            inner: Mutex::default(),
        }
    }

    /// Enters a new attempt under a random id.
    pub(crate) fn open(
        self: &Arc<Self>,
        now: Instant,
        reservation: &Reservation,
    ) -> (Arc<OpenAttempt>, TransferId, TransferSecret) {
        let (id, secret) = (TransferId(rand::random()), TransferSecret(rand::random()));
        let key = AttemptKey {
            transfer_id: id,
            attempt: reservation.attempt,
        };
        let state = ReceiveAttempt::new(
            now,
            key,
            secret.clone(),
            reservation.slots.clone(),
            reservation.reused_pages,
            *self.memory.layout(),
            self.lease,
        );
        let attempt = Arc::new(OpenAttempt::new(state, Arc::clone(self)));
        add(&self.counters.opened, 1);
        let refused = {
            let mut inner = self.lock();
            let open = inner.open.len();
            if inner.shut {
                Some(TransferError::Shutdown)
            } else if open >= MAX_OPEN {
                Some(TransferError::TooManyTransfers {
                    open,
                    limit: MAX_OPEN,
                })
            } else {
                inner.open.insert(id, Arc::clone(&attempt));
                None
            }
        };
        if let Some(error) = refused {
            attempt.with(|state| state.fail(error));
        }
        (attempt, id, secret)
    }

    /// Lets a sender in, or says why not.
    pub(crate) fn admit(
        &self,
        now: Instant,
        hello: &Hello,
        facts: SocketFacts,
    ) -> Result<Arc<OpenAttempt>, Refusal> {
        let found = self.identity.incarnation;
        if hello.receiver != found {
            return Err(Refusal::Incarnation {
                wanted: hello.receiver,
                found,
            });
        }
        let fields = self
            .identity
            .fingerprint
            .differing_fields(&hello.fingerprint);
        if !fields.is_empty() {
            return Err(Refusal::Fingerprint(
                fields.into_iter().map(str::to_owned).collect(),
            ));
        }
        let attempt = self.find(hello.key.transfer_id)?;
        let quarantined = self.quarantined(hello.sender);
        attempt.with(|state| {
            let Attempt(open) = state.key().attempt;
            if hello.key.attempt.0 != open {
                return Err(Refusal::Attempt {
                    wanted: hello.key.attempt.0,
                    found: open,
                });
            }
            if !state.knows(&hello.secret) {
                return Err(Refusal::Secret);
            }
            if !state.granted(&hello.slots_digest) {
                return Err(Refusal::Slots);
            }
            if facts.transport == Transport::Shm {
                self.check_shm(hello, facts, quarantined)?;
            }
            state.connect(
                now,
                Peer {
                    incarnation: hello.sender,
                    transport: facts.transport,
                },
            )
        })?;
        Ok(attempt)
    }

    /// What an admitted sender is told.
    pub(crate) fn welcome(&self, memory_attached: bool) -> Welcome {
        let layout = self.memory.layout();
        Welcome {
            receiver: self.identity.incarnation,
            credit_bytes: self.credit_bytes as u64,
            pool_pages: layout.pages,
            piece_bytes: layout.piece_bytes() as u32,
            memory_attached,
        }
    }

    fn find(&self, id: TransferId) -> Result<Arc<OpenAttempt>, Refusal> {
        let inner = self.lock();
        if let Some(attempt) = inner.open.get(&id) {
            return Ok(Arc::clone(attempt));
        }
        let recent = inner.recent.iter().find(|(closed, _)| *closed == id);
        Err(recent.map_or(Refusal::Unknown, |(_, reason)| Refusal::Closed(*reason)))
    }

    fn check_shm(&self, hello: &Hello, facts: SocketFacts, pages: u32) -> Result<(), Refusal> {
        let cap = self.quarantine_cap_pages;
        if !facts.same_user {
            Err(Refusal::OtherUser)
        } else if hello.host_id.is_empty() || hello.host_id != self.identity.host_id {
            Err(Refusal::OtherHost)
        } else if pages > cap {
            Err(Refusal::Quarantine { pages, cap })
        } else {
            Ok(())
        }
    }

    /// Pages of one peer that are closed but that it may still write.
    pub(crate) fn quarantined(&self, peer: Incarnation) -> u32 {
        self.lock().quarantined.get(&peer).copied().unwrap_or(0)
    }

    /// Books a close or a fence.
    pub(crate) fn note(&self, state: &ReceiveAttempt, before: Status, now: Status) {
        let Some(ending) = state.ending() else { return };
        let mut inner = self.lock();
        if !before.closed {
            self.count(ending);
            let id = state.key().transfer_id;
            inner.open.remove(&id);
            if inner.recent.len() == MAX_RECENT {
                inner.recent.pop_front();
            }
            inner.recent.push_back((id, ending.reason()));
        }
        let Some(peer) = state.peer() else { return };
        let held = |status: Status| status.closed && !status.fenced;
        let pages = state.pages();
        if held(now) && !held(before) {
            add(&self.counters.pages_quarantined, u64::from(pages));
            *inner.quarantined.entry(peer.incarnation).or_default() += pages;
        } else if held(before) && !held(now) {
            add(&self.counters.pages_fenced, u64::from(pages));
            if let Some(count) = inner.quarantined.get_mut(&peer.incarnation) {
                *count -= pages;
                if *count == 0 {
                    inner.quarantined.remove(&peer.incarnation);
                }
            }
        }
    }

    fn count(&self, ending: &Ending) {
        match ending {
            Ending::Committed(_) => add(&self.counters.committed, 1),
            Ending::Revoked => add(&self.counters.revoked, 1),
            Ending::Failed(error) => self.counters.count_failure(error),
        }
    }

    /// Closes every attempt; none opens after that.
    pub(crate) fn shut(&self) {
        let open: Vec<_> = {
            let mut inner = self.lock();
            inner.shut = true;
            inner.open.values().cloned().collect()
        };
        for attempt in open {
            attempt.with(|state| state.fail(TransferError::Shutdown));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
