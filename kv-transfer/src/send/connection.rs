//! The data connection of one attempt at the sender: does what the attempt says next, and tells it
//! what the receiver says. It must not decide anything about the attempt.
//!
//! The task that owns the socket also copies (shm), so the socket cannot close at this side while a
//! copy runs: its end proves to the receiver that nothing is written any more.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::attempt::{Action, Ending, SendAttempt};
use super::credit::Share;
use super::dial::Link;
use super::gate::Gate;
use super::outbox::Outbox;
use super::run::Run;
use super::writer::Carried;
use crate::checksum::{PieceName, piece_checksum};
use crate::error::TransferError;
use crate::frame::Frame;
use crate::page_access::{PageMemory, PieceRun};
use crate::progress::PageProgress;

/// What is queued or copied before the socket is looked at again.
const TURN_BYTES: usize = 1 << 20;
/// How long an ended attempt may take to say its last word.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What the owner of an attempt wants.
#[derive(Debug)]
pub(crate) enum Command {
    Commit(Vec<u8>),
    Revoke,
}

/// One connection after its handshake.
pub(crate) struct Connection {
    pub(crate) link: Link,
    pub(crate) attempt: SendAttempt,
    pub(crate) memory: PageMemory,
    pub(crate) progress: Arc<PageProgress>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) credit: Share,
    pub(crate) outbox: Outbox,
    pub(crate) figures: Figures,
}

/// Payload bytes so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) bytes: u64,
    pub(crate) bytes_before_finish: u64,
    pub(crate) first_byte: Option<Instant>,
}

impl Connection {
    /// Runs until the attempt has ended.
    pub(crate) async fn run(&mut self, commands: &mut mpsc::Receiver<Command>) -> Ending {
        let mut deserted = false;
        loop {
            if let Some(ending) = self.attempt.ending() {
                return ending.clone();
            }
            let progress = Arc::clone(&self.progress);
            let credit = self.credit.credit();
            let (changed, credited) = (progress.changed(), credit.changed());
            tokio::pin!(changed, credited);
            changed.as_mut().enable();
            credited.as_mut().enable();
            self.fill();
            let may_write = self.attempt.may_write();
            // While words wait to be written, silence is not ours to break.
            let wake_at = self.attempt.wake_at(self.has_output());
            tokio::select! {
                biased;
                command = commands.recv(), if !deserted => {
                    deserted = command.is_none();
                    self.obey(command);
                }
                io = std::future::poll_fn(|cx| self.poll(cx)) => {
                    if let Err(error) = io {
                        self.attempt.broken(TransferError::lost(error));
                    }
                }
                () = changed, if may_write => {}
                () = credited, if may_write => {}
                () = tokio::time::sleep_until(wake_at.into()) => {
                    self.attempt.expire(now());
                }
            }
        }
    }

    /// Says what is still owed to the receiver, within a limit, and gives credit back.
    pub(crate) async fn finish(mut self) {
        self.gate.shut();
        self.credit.give_all_back();
        if !self.outbox.drop_unstarted() {
            while let Some(Action::Frame(frame)) = self.attempt.next(now(), &self.progress, 0) {
                self.outbox.push_words(frame.encode(0));
            }
            let said = std::future::poll_fn(|cx| {
                loop {
                    if !self.has_output() {
                        return Poll::Ready(());
                    }
                    match self.poll_output(cx) {
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(_)) => return Poll::Ready(()),
                        Poll::Pending => return Poll::Pending,
                    }
                }
            });
            // Unsaid, the end of the connection says the same.
            let _ = tokio::time::timeout(LAST_WORD, said).await;
        }
    }

    fn obey(&mut self, command: Option<Command>) {
        match command {
            Some(Command::Commit(payload)) => self.attempt.commit(payload),
            Some(Command::Revoke) => {
                self.attempt.revoke();
                self.outbox.drop_unstarted();
            }
            None => {
                // Dropped: the gate is shut. A frame that needs pages can never be completed, and a
                // Commit that has not left yet never will: the connection's end tells the receiver.
                self.attempt.revoke();
                if self.outbox.drop_unstarted() || self.attempt.is_committing() {
                    self.attempt.fail(TransferError::Revoked);
                }
            }
        }
    }

    /// Queues what may be said and moves what may be moved, up to one turn's worth.
    fn fill(&mut self) {
        let mut copied = 0;
        while self.outbox.bytes() + copied < TURN_BYTES {
            let credit = self.credit.available();
            match self.attempt.next(now(), &self.progress, credit) {
                None => return,
                Some(Action::Frame(frame)) => self.outbox.push_words(frame.encode(0)),
                Some(Action::Pages(run)) => {
                    let piece = self.memory.layout().piece_bytes() as u64;
                    let bytes = u64::from(run.count) * piece;
                    if !self.credit.take(bytes, piece) {
                        continue;
                    }
                    if !self.send_run(&run) {
                        // Dropped while at work: the closed command channel tells the rest.
                        self.credit.give_back(bytes);
                        return;
                    }
                    copied += bytes as usize;
                }
            }
        }
    }

    /// Moves one run; `false` if the gate is shut.
    fn send_run(&mut self, run: &Run) -> bool {
        let key = self.attempt.key();
        let reused = self.attempt.grant().reused_pages;
        let (memory, writer) = (&self.memory, &mut self.link.writer);
        let moved = self.gate.pass(|| {
            (0..run.count)
                .map(|step| {
                    let piece = PieceRun {
                        page: run.local_page + step,
                        count: 1,
                        ..run.local()
                    };
                    let bytes = memory.bytes(piece);
                    writer.write(run, step, bytes);
                    let position = reused + run.index + step;
                    let (transfer_id, attempt) = (key.transfer_id, key.attempt);
                    let name = PieceName {
                        transfer_id,
                        attempt,
                        layer: run.layer,
                        position,
                    };
                    piece_checksum(&name, bytes)
                })
                .collect::<Vec<u32>>()
        });
        let Some(checksums) = moved else { return false };
        self.figures.first_byte.get_or_insert_with(Instant::now);
        let head = Frame::Pages(self.attempt.run_sent(now(), run, &checksums));
        let bytes = run.count as usize * self.memory.layout().piece_bytes();
        match self.link.writer.carried() {
            Carried::OnTheWire => {
                self.outbox.push_words(head.encode(bytes));
                self.outbox.push_pages(run.local(), bytes);
            }
            Carried::InPlace => {
                self.outbox.push_words(head.encode(0));
                self.count(bytes);
            }
        }
        true
    }

    fn count(&mut self, payload_bytes: usize) {
        self.figures.bytes += payload_bytes as u64;
        if !self.progress.is_finished() {
            self.figures.bytes_before_finish += payload_bytes as u64;
        }
    }

    /// Hears everything that is there, then writes what can be.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut moved = false;
        loop {
            match self.link.buffer.next_frame() {
                Ok(Some(decoded)) => {
                    let back = self.attempt.heard(now(), &decoded.frame);
                    self.credit.give_back(back);
                    if decoded.payload_bytes > 0 {
                        self.attempt.fail(TransferError::OutOfTurn("Pages"));
                    }
                    moved = true;
                }
                Ok(None) => match self.link.buffer.poll_fill(&mut self.link.socket, cx)? {
                    Poll::Ready(0) => {
                        return Poll::Ready(Err(io::Error::other("closed by the receiver")));
                    }
                    Poll::Ready(_) => {}
                    Poll::Pending => break,
                },
                Err(error) => {
                    self.attempt.fail(TransferError::Frame(error));
                    return Poll::Ready(Ok(()));
                }
            }
            if self.attempt.ending().is_some() {
                return Poll::Ready(Ok(()));
            }
        }
        if self.has_output() {
            match self.poll_output(cx)? {
                Poll::Ready(()) => moved = true,
                Poll::Pending => {}
            }
        }
        if moved {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn has_output(&self) -> bool {
        !self.outbox.is_empty() || self.link.socket.is_unflushed()
    }

    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outbox.is_empty() {
            return self.link.socket.poll_flush(cx);
        }
        match self
            .outbox
            .poll_write(&mut self.link.socket, &self.memory, &self.gate, cx)?
        {
            Poll::Ready(Ok(payload)) => {
                if payload > 0 {
                    self.attempt.progressed(now());
                    self.count(payload);
                }
                Poll::Ready(Ok(()))
            }
            // Dropped: the closed command channel tells the rest.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
