//! One attempt at the receiver, who alone closes it. Pure: no sockets, no memory, no clock of its own.
//!
//! The first of valid Commit, Revoke, drop, expiry and lost connection that is processed wins.
//! Pages stay writable for the peer after that only over shm: see [`ReceiveAttempt::is_fenced`].

use std::time::{Duration, Instant};

use baton_kv_cache::KvLayout;
use baton_proto::domain::{PageSlot, Transport};
use baton_proto::ids::{Incarnation, TransferSecret};

use super::ending::Ending;
use super::pieces::Pieces;
use crate::checksum::slots_digest;
use crate::error::{Refusal, TransferError};
use crate::frame::{AttemptKey, Commit, Manifest, PagesHead};
use crate::page_access::PieceRun;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Granted; nobody has come.
    Waiting,
    /// A sender has shaken hands.
    Connected,
    /// Its manifest was right.
    Streaming,
    Closed(Ending),
}

/// Who shook hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) incarnation: Incarnation,
    pub(crate) transport: Transport,
}

/// What to do with a Pages frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The pieces may land here. Flags tell which have landed before and are to be dropped.
    Land {
        run: PieceRun,
        landed_before: Vec<bool>,
    },
    /// Late, foreign or wrong: not a byte of it may touch memory.
    Drop,
}

/// State of one attempt.
#[derive(Debug)]
pub(crate) struct ReceiveAttempt {
    key: AttemptKey,
    secret: TransferSecret,
    slots: Vec<PageSlot>,
    reused_pages: u32,
    layout: KvLayout,
    lease: Duration,
    deadline: Instant,
    phase: Phase,
    peer: Option<Peer>,
    peer_gone: bool,
    pieces: Pieces,
}

impl ReceiveAttempt {
    pub(crate) fn new(
        now: Instant,
        key: AttemptKey,
        secret: TransferSecret,
        slots: Vec<PageSlot>,
        reused_pages: u32,
        layout: KvLayout,
        lease: Duration,
    ) -> Self {
        Self {
            key,
            secret,
            pieces: Pieces::new(layout.layers, slots.len()),
            slots,
            reused_pages,
            layout,
            lease,
            deadline: now + lease,
            phase: Phase::Waiting,
            peer: None,
            peer_gone: false,
        }
    }

    pub(crate) fn key(&self) -> AttemptKey {
        self.key
    }
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer
    }
    pub(crate) fn pages(&self) -> u32 {
        self.slots.len() as u32
    }
    /// When the lease ends, unless renewed.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }
    pub(crate) fn ending(&self) -> Option<&Ending> {
        match &self.phase {
            Phase::Closed(ending) => Some(ending),
            _ => None,
        }
    }

    /// Whether the attempt is closed and nobody else can write its pages any more. Over tcp only this
    /// side writes, and not after the close. Over shm the peer may be inside a copy: Commit and Revoke
    /// are its word that it is not, and so are an answer to our close, and the end of its connection
    /// *as closed by the peer or its death* (our own close proves nothing).
    pub(crate) fn is_fenced(&self) -> bool {
        let shm = self
            .peer
            .is_some_and(|peer| peer.transport == Transport::Shm);
        match &self.phase {
            Phase::Closed(Ending::Failed(_)) => !shm || self.peer_gone,
            Phase::Closed(_) => true,
            _ => false,
        }
    }

    /// Compares a secret, in time that does not depend on where it differs.
    pub(crate) fn knows(&self, secret: &TransferSecret) -> bool {
        let difference = self
            .secret
            .0
            .iter()
            .zip(&secret.0)
            .fold(0u8, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(difference) == 0
    }

    /// Whether a sender's grant names exactly what was reserved.
    pub(crate) fn granted(&self, digest: &[u8; 32]) -> bool {
        slots_digest(self.reused_pages, &self.slots) == *digest
    }

    /// A sender with the right secret wants in. Single use: a broken connection ends its attempt.
    pub(crate) fn connect(&mut self, now: Instant, peer: Peer) -> Result<(), Refusal> {
        match &self.phase {
            Phase::Waiting => {
                self.phase = Phase::Connected;
                self.peer = Some(peer);
                self.renew(now);
                Ok(())
            }
            Phase::Closed(ending) => Err(Refusal::Closed(ending.reason())),
            Phase::Connected | Phase::Streaming => Err(Refusal::AlreadyUsed),
        }
    }

    /// The manifest. Anything but what was reserved ends the attempt.
    pub(crate) fn open(&mut self, now: Instant, manifest: &Manifest) {
        match self.phase {
            Phase::Connected => {}
            Phase::Closed(_) => return,
            _ => return self.fail(TransferError::OutOfTurn("Open")),
        }
        let pages = u64::from(self.pages());
        let pages_of_prompt = u64::from(self.layout.pages_for(manifest.prompt_tokens));
        let bytes = pages * self.layout.page_bytes() as u64;
        let checks = [
            ("pages", u64::from(manifest.pages), pages),
            (
                "reused pages",
                u64::from(manifest.reused_pages),
                u64::from(self.reused_pages),
            ),
            (
                "layers",
                u64::from(manifest.layers),
                u64::from(self.layout.layers),
            ),
            (
                "piece bytes",
                u64::from(manifest.piece_bytes),
                self.layout.piece_bytes() as u64,
            ),
            (
                "pages of the prompt",
                pages_of_prompt,
                pages + u64::from(self.reused_pages),
            ),
            ("bytes", manifest.bytes, bytes),
        ];
        if let Some((what, value, expected)) = checks.into_iter().find(|(_, v, e)| v != e) {
            return self.fail(TransferError::Manifest {
                what,
                value,
                expected,
            });
        }
        self.phase = Phase::Streaming;
        self.renew(now);
    }

    /// Judges a Pages frame before memory is touched. `payload_bytes` follow it (tcp), or its pieces
    /// have been written in place (shm: 0).
    pub(crate) fn pages_arrive(
        &mut self,
        now: Instant,
        head: &PagesHead,
        payload_bytes: usize,
    ) -> Verdict {
        if head.key != self.key || matches!(self.phase, Phase::Closed(_)) {
            return Verdict::Drop;
        }
        if self.phase != Phase::Streaming {
            self.fail(TransferError::OutOfTurn("Pages"));
            return Verdict::Drop;
        }
        let carried = match self.peer.map(|peer| peer.transport) {
            Some(Transport::Shm) => 0,
            _ => head.marks.len() * self.layout.piece_bytes(),
        };
        if payload_bytes != carried {
            let (value, expected) = (payload_bytes as u64, carried as u64);
            self.fail(TransferError::Manifest {
                what: "payload bytes",
                value,
                expected,
            });
            return Verdict::Drop;
        }
        let Some(first) = self.granted_from(head) else {
            return Verdict::Drop;
        };
        self.renew(now);
        let landed_before = (first..first + head.marks.len())
            .map(|at| self.pieces.has_landed(head.layer, at))
            .collect();
        let run = PieceRun {
            layer: head.layer,
            page: head.page,
            count: head.marks.len() as u32,
        };
        Verdict::Land { run, landed_before }
    }

    /// Index of the run's first slot, if every page of it is granted, in its generation.
    fn granted_from(&mut self, head: &PagesHead) -> Option<usize> {
        let first = head
            .position
            .checked_sub(self.reused_pages)
            .map_or(usize::MAX, |at| at as usize);
        for (step, mark) in (0u32..).zip(&head.marks) {
            let (position, page) = (head.position + step, head.page + step);
            let generation = mark.generation;
            let slot = first
                .checked_add(step as usize)
                .and_then(|at| self.slots.get(at));
            if head.layer >= self.layout.layers || slot != Some(&PageSlot { page, generation }) {
                self.fail(TransferError::StalePage {
                    layer: head.layer,
                    position,
                    page,
                    generation,
                });
                return None;
            }
        }
        Some(first)
    }

    /// Some bytes of a judged frame are in their page.
    pub(crate) fn renew(&mut self, now: Instant) {
        self.deadline = now + self.lease;
    }

    /// A whole piece is in its page: position in the prompt, the checksum stated and the one found
    /// (bound to the place where it landed).
    pub(crate) fn landed(&mut self, layer: u32, position: u32, stated: u32, found: u32) {
        if matches!(self.phase, Phase::Closed(_)) {
            return;
        }
        let at = (position - self.reused_pages) as usize;
        let same_as_before = self
            .pieces
            .checksum(layer, at)
            .is_none_or(|before| before == stated);
        if stated == found && same_as_before {
            self.pieces.land(layer, at, stated);
        } else {
            self.fail(TransferError::Checksum {
                layer,
                position,
                found,
                stated,
            });
        }
    }

    /// A piece that had landed was sent again and dropped; it must have been the same one.
    pub(crate) fn repeated(&mut self, layer: u32, position: u32, stated: u32) {
        self.landed(layer, position, stated, stated);
    }

    /// The sender's last word. Closes the attempt, one way or the other.
    pub(crate) fn commit(&mut self, commit: Commit) {
        match self.phase {
            Phase::Streaming => {}
            Phase::Closed(_) => return,
            _ => return self.fail(TransferError::OutOfTurn("Commit")),
        }
        let (landed, expected) = (self.pieces.count(), self.pieces.expected());
        let bytes = expected * self.layout.piece_bytes() as u64;
        if landed != expected || commit.pieces != expected {
            self.fail(TransferError::Gap {
                landed,
                expected,
                stated: commit.pieces,
            });
        } else if commit.bytes != bytes {
            let (value, expected) = (commit.bytes, bytes);
            self.fail(TransferError::Manifest {
                what: "committed bytes",
                value,
                expected,
            });
        } else if commit.digest != self.pieces.digest(self.key) {
            self.fail(TransferError::Digest);
        } else {
            self.close(Ending::Committed(commit.payload));
        }
    }

    /// The sender gives up and has stopped writing.
    pub(crate) fn revoke(&mut self) {
        self.close(Ending::Revoked);
        self.peer_gone = true;
    }

    /// The sender answered our close: it has stopped writing.
    pub(crate) fn acknowledged(&mut self) {
        if matches!(self.phase, Phase::Closed(_)) {
            self.peer_gone = true;
        } else {
            self.fail(TransferError::OutOfTurn("RevokeAck"));
        }
    }

    /// The peer closed its connection, or died.
    pub(crate) fn disconnected(&mut self, detail: &str) {
        self.fail(TransferError::lost(detail));
        self.peer_gone = true;
    }

    /// Ends the attempt if its lease is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        if now >= self.deadline {
            self.fail(TransferError::Expired {
                lease_ms: self.lease.as_millis() as u64,
            });
        }
    }

    /// Ends the attempt on this side, or for a violation.
    pub(crate) fn fail(&mut self, error: TransferError) {
        self.close(Ending::Failed(error));
    }

    fn close(&mut self, ending: Ending) {
        if !matches!(self.phase, Phase::Closed(_)) {
            self.phase = Phase::Closed(ending);
        }
    }
}
