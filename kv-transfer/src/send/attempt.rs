//! One attempt at the sender: what may be said next. Pure: no sockets, no clock of its own.

use std::time::{Duration, Instant};

use baton_proto::domain::Grant;

use super::run::Run;
use crate::checksum::transfer_digest;
use crate::error::{CloseReason, TransferError};
use crate::frame::{
    AttemptKey, Commit, Frame, MAX_COMMIT_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES, MAX_RUN_PAGES,
    Manifest, PageMark, PagesHead,
};
use crate::progress::PageProgress;

/// How an attempt ended here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    Committed,
    Revoked,
    Failed(TransferError),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Say this.
    Frame(Frame),
    /// Move these pieces, then report [`SendAttempt::run_sent`].
    Pages(Run),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// The manifest has not been said.
    Opening,
    Streaming,
    /// Commit was said: nothing is written any more.
    Committing,
    /// Revoke was said: nothing is written any more.
    Revoking,
    Ended(Ending),
}

/// Time limits of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Longest silence of this side.
    pub(crate) keep_alive: Duration,
    /// Longest time without progress.
    pub(crate) progress: Duration,
}

/// State of one attempt.
#[derive(Debug)]
pub(crate) struct SendAttempt {
    key: AttemptKey,
    manifest: Manifest,
    grant: Grant,
    phase: Phase,
    /// Pages sent per layer, behind the reused prefix.
    sent: Vec<u32>,
    /// Layer-major checksums of all pieces.
    checksums: Vec<u32>,
    pieces_sent: u64,
    in_flight: u64,
    wants_commit: Option<Vec<u8>>,
    wants_revoke: bool,
    owes_ack: bool,
    spoke: Instant,
    progressed: Instant,
    pace: Pace,
}

impl SendAttempt {
    /// Checks the grant against the prompt and this side's layout.
    pub(crate) fn new(
        now: Instant,
        grant: Grant,
        progress: &PageProgress,
        piece_bytes: usize,
        pace: Pace,
    ) -> Result<Self, TransferError> {
        let pages = grant.slots.len() as u32;
        let check = |what, value: u64, expected: u64| {
            if value == expected {
                Ok(())
            } else {
                Err(TransferError::Grant {
                    what,
                    value,
                    expected,
                })
            }
        };
        let granted = u64::from(grant.reused_pages) + grant.slots.len() as u64;
        check("pages", granted, progress.pages().len() as u64)?;
        check(
            "layers",
            u64::from(grant.fingerprint.layers),
            u64::from(progress.layers()),
        )?;
        let pieces = grant.slots.len() * progress.layers() as usize;
        let manifest = Manifest {
            pages,
            reused_pages: grant.reused_pages,
            layers: progress.layers(),
            piece_bytes: piece_bytes as u32,
            prompt_tokens: progress.prompt_tokens(),
            bytes: pieces as u64 * piece_bytes as u64,
        };
        Ok(Self {
            key: AttemptKey {
                transfer_id: grant.transfer_id,
                attempt: grant.attempt,
            },
            manifest,
            phase: Phase::Opening,
            sent: vec![0; progress.layers() as usize],
            checksums: vec![0; pieces],
            pieces_sent: 0,
            in_flight: 0,
            wants_commit: None,
            wants_revoke: false,
            owes_ack: false,
            spoke: now,
            progressed: now,
            pace,
            grant,
        })
    }

    pub(crate) fn key(&self) -> AttemptKey {
        self.key
    }
    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }
    pub(crate) fn ending(&self) -> Option<&Ending> {
        match &self.phase {
            Phase::Ended(ending) => Some(ending),
            _ => None,
        }
    }
    /// Whether pages may still be read and written.
    pub(crate) fn may_write(&self) -> bool {
        matches!(self.phase, Phase::Opening | Phase::Streaming)
    }

    /// The worker has nothing more to compute: commit once everything is sent.
    pub(crate) fn commit(&mut self, payload: Vec<u8>) {
        if payload.len() > MAX_COMMIT_PAYLOAD_BYTES {
            let (bytes, limit) = (payload.len(), MAX_COMMIT_PAYLOAD_BYTES);
            self.fail(TransferError::CommitPayload { bytes, limit });
        } else {
            self.wants_commit = Some(payload);
        }
    }

    /// Give up, unless Commit has been said: then the receiver decides.
    pub(crate) fn revoke(&mut self) {
        self.wants_revoke = true;
    }

    /// Whether Commit has been said and its answer is awaited.
    pub(crate) fn is_committing(&self) -> bool {
        matches!(self.phase, Phase::Committing)
    }

    pub(crate) fn fail(&mut self, error: TransferError) {
        self.end(Ending::Failed(error));
    }

    /// What to do next, with `credit` bytes free to be in flight. `None`: wait.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        progress: &PageProgress,
        credit: u64,
    ) -> Option<Action> {
        let frame = match self.phase {
            _ if std::mem::take(&mut self.owes_ack) => Frame::RevokeAck(self.key),
            Phase::Ended(_) => return None,
            Phase::Opening | Phase::Streaming if self.wants_revoke => {
                self.phase = Phase::Revoking;
                Frame::Revoke(self.key)
            }
            Phase::Opening => {
                self.phase = Phase::Streaming;
                Frame::Open(self.key, self.manifest)
            }
            Phase::Streaming => match self.next_of_stream(progress, credit) {
                Some(Action::Frame(frame)) => frame,
                Some(run) => return Some(run),
                None => self.keep_alive(now)?,
            },
            Phase::Committing | Phase::Revoking => self.keep_alive(now)?,
        };
        self.spoke = now;
        Some(Action::Frame(frame))
    }

    fn next_of_stream(&mut self, progress: &PageProgress, credit: u64) -> Option<Action> {
        if self.pieces_sent == self.checksums.len() as u64 {
            let payload = self.wants_commit.take()?;
            self.phase = Phase::Committing;
            let digest = transfer_digest(self.key.transfer_id, self.key.attempt, &self.checksums);
            let (pieces, bytes) = (self.pieces_sent, self.manifest.bytes);
            return Some(Action::Frame(Frame::Commit(
                self.key,
                Commit {
                    pieces,
                    bytes,
                    digest,
                    payload,
                },
            )));
        }
        let piece = u64::from(self.manifest.piece_bytes);
        // One piece may always be in flight, however small the receiver's credit: no deadlock.
        let credit = if self.in_flight == 0 {
            credit.max(piece)
        } else {
            credit
        };
        let limit = (credit.min(MAX_PAYLOAD_BYTES as u64) / piece).min(MAX_RUN_PAGES as u64) as u32;
        let reused = self.manifest.reused_pages;
        let local = &progress.pages()[reused as usize..];
        (0..self.manifest.layers)
            .find_map(|layer| {
                let ready = progress.ready_pages(layer).saturating_sub(reused);
                Run::longest(
                    layer,
                    self.sent[layer as usize],
                    ready,
                    limit,
                    local,
                    &self.grant.slots,
                )
            })
            .map(Action::Pages)
    }

    fn keep_alive(&self, now: Instant) -> Option<Frame> {
        (now >= self.spoke + self.pace.keep_alive).then_some(Frame::KeepAlive(self.key))
    }

    /// The pieces of a run have left, or lie in their pages (shm); returns the frame that says so.
    pub(crate) fn run_sent(&mut self, now: Instant, run: &Run, checksums: &[u32]) -> PagesHead {
        debug_assert!(self.may_write() && checksums.len() == run.count as usize);
        let (pages, from) = (self.manifest.pages as usize, run.index as usize);
        let at = run.layer as usize * pages + from;
        self.checksums[at..at + checksums.len()].copy_from_slice(checksums);
        self.sent[run.layer as usize] += run.count;
        self.pieces_sent += u64::from(run.count);
        self.in_flight += u64::from(run.count) * u64::from(self.manifest.piece_bytes);
        self.spoke = now;
        let slots = &self.grant.slots[from..from + checksums.len()];
        let marks = slots.iter().zip(checksums);
        PagesHead {
            key: self.key,
            layer: run.layer,
            position: self.manifest.reused_pages + run.index,
            page: run.slot_page,
            marks: marks
                .map(|(slot, checksum)| PageMark {
                    generation: slot.generation,
                    checksum: *checksum,
                })
                .collect(),
        }
    }

    /// Payload bytes moved on: the receiver, or at least the network, is alive.
    pub(crate) fn progressed(&mut self, now: Instant) {
        self.progressed = now;
    }

    /// A frame from the receiver. Returns the credit that it gives back.
    pub(crate) fn heard(&mut self, now: Instant, frame: &Frame) -> u64 {
        self.progressed = now;
        match (frame, &self.phase) {
            (Frame::Credit(key, bytes), _) if *key == self.key => {
                let back = (*bytes).min(self.in_flight);
                self.in_flight -= back;
                return back;
            }
            (Frame::KeepAlive(key), _) if *key == self.key => {}
            (Frame::CommitAck(key), Phase::Committing) if *key == self.key => {
                self.end(Ending::Committed);
            }
            (Frame::RevokeAck(key), Phase::Revoking) if *key == self.key => {
                self.end(Ending::Revoked);
            }
            (Frame::Closed(key, reason), _) if *key == self.key => self.closed(*reason),
            (other, _) => self.fail(TransferError::OutOfTurn(other.name())),
        }
        0
    }

    fn closed(&mut self, reason: CloseReason) {
        // The answer fences the pages: from here on nothing is written.
        self.owes_ack = true;
        let ending = match (&self.phase, reason) {
            (Phase::Revoking, _) => Ending::Revoked,
            _ => Ending::Failed(TransferError::Closed(reason)),
        };
        self.end(ending);
    }

    /// The connection is gone.
    pub(crate) fn broken(&mut self, error: TransferError) {
        let ending = match self.phase {
            Phase::Revoking => Ending::Revoked,
            _ => Ending::Failed(error),
        };
        self.end(ending);
    }

    /// Ends an attempt that has had no progress for too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        if now >= self.progressed + self.pace.progress {
            let limit_ms = self.pace.progress.as_millis() as u64;
            self.broken(TransferError::NoProgress { limit_ms });
        }
    }

    /// When to call [`Self::next`] and [`Self::expire`] again at the latest. `talking`: words are still
    /// on their way, so that only progress matters.
    pub(crate) fn wake_at(&self, talking: bool) -> Instant {
        let expiry = self.progressed + self.pace.progress;
        if talking {
            expiry
        } else {
            expiry.min(self.spoke + self.pace.keep_alive)
        }
    }

    fn end(&mut self, ending: Ending) {
        if !matches!(self.phase, Phase::Ended(_)) {
            self.phase = Phase::Ended(ending);
        }
    }
}
