//! The data connection of one attempt at the receiver: reads until the peer is done, always drains,
//! and says what is due. It must not decide anything about the attempt.
//!
//! How it ends: after a close it says so and goes on draining. Once the pages are fenced it waits a
//! moment for the peer to hang up, so that its last word is not lost. While they are not (shm), it
//! keeps the socket open without limit, because only the peer's answer or the end *at the peer's
//! side* frees the pages; a stopped process keeps its pages in quarantine, a killed one frees them. A panic
//! costs the attempt alone: the socket outlives it, half closed, until the peer has hung up.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::attempt::{ReceiveAttempt, Verdict};
use super::ending::Ending;
use super::landing::{Landing, Step, verify_in_place};
use super::open_attempt::OpenAttempt;
use super::table::Table;
use crate::counters::add;
use crate::error::TransferError;
use crate::frame::{AttemptKey, Decoded, Frame, FrameError, PagesHead};
use crate::panics::unless_panics;
use crate::read_buffer::ReadBuffer;
use crate::socket::Socket;

/// How long a finished connection waits for the peer to hang up.
const LINGER: Duration = Duration::from_secs(2);
/// Credit goes back in portions of this size, or when nothing more is there to read.
const CREDIT_BYTES: u64 = 256 << 10;

/// One connection after its handshake.
pub(crate) struct Connection {
    table: Arc<Table>,
    attempt: Arc<OpenAttempt>,
    key: AttemptKey,
    socket: Socket,
    buffer: ReadBuffer,
    input: Input,
    output: Output,
}

enum Input {
    Frames,
    Landing(Landing),
    /// Payload bytes of a dropped frame.
    Skip(usize),
    /// The peer talks nonsense: nothing more is understood.
    Deaf,
    End,
}

/// What is to be said; every kind at most once, so that nothing piles up if the peer does not listen.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    said: usize,
    credit: u64,
    keep_alive: bool,
    end: EndWord,
    broken: bool,
}

/// Whether the peer has been told how the attempt ended.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum EndWord {
    #[default]
    Due,
    Said,
    /// Something came late: say again that it is closed.
    Asked,
}

impl Connection {
    /// `first_words` have been composed by the handshake and are still to be said.
    pub(crate) fn new(
        table: Arc<Table>,
        attempt: Arc<OpenAttempt>,
        socket: Socket,
        buffer: ReadBuffer,
        first_words: Vec<u8>,
    ) -> Self {
        let key = attempt.with(|state| state.key());
        let output = Output {
            bytes: first_words,
            ..Output::default()
        };
        Self {
            table,
            attempt,
            key,
            socket,
            buffer,
            input: Input::Frames,
            output,
        }
    }

    /// Runs the connection to its end.
    pub(crate) async fn run(mut self) {
        if unless_panics(self.converse()).await.is_some() {
            return;
        }
        tracing::error!(transfer = ?self.key.transfer_id, "a data connection's task panicked");
        self.attempt
            .with(|state| state.fail(TransferError::lost("the connection's task panicked")));
        if !self.attempt.status().fenced {
            self.socket.hang_up().await;
            self.attempt
                .with(|state| state.disconnected("closed by the sender"));
        }
    }

    async fn converse(&mut self) {
        let mut changes = self.attempt.watch();
        let mut linger_until = None;
        loop {
            let status = *changes.borrow_and_update();
            if status.fenced && linger_until.is_none() {
                linger_until = Some(Instant::now() + LINGER);
            }
            // Asked here too: a peer that never stops talking would keep the timer from being heard.
            if linger_until.is_some_and(|until| Instant::now() >= until) {
                return;
            }
            tokio::select! {
                biased;
                io = std::future::poll_fn(|cx| self.poll(cx)) => {
                    let detail = match io {
                        Ok(true) => continue,
                        Ok(false) => "closed by the sender".to_owned(),
                        Err(error) => error.to_string(),
                    };
                    self.attempt.with(|state| state.disconnected(&detail));
                    return;
                }
                _ = changes.changed(), if !status.fenced => {}
                () = linger(linger_until) => return,
            }
        }
    }

    /// Reads and writes what can be; `false` once the peer has closed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let read = self.poll_input(cx)?;
        if matches!(self.input, Input::End) {
            return Poll::Ready(Ok(false));
        }
        self.compose(read.is_pending());
        let wrote = self.poll_output(cx);
        if read.is_ready() || wrote.is_ready() {
            Poll::Ready(Ok(true))
        } else {
            Poll::Pending
        }
    }

    /// One step of reading.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.input {
            Input::End => return Poll::Ready(Ok(())),
            Input::Frames => match self.buffer.next_frame() {
                Ok(Some(decoded)) => self.hear(decoded),
                Ok(None) => {
                    if ready!(self.buffer.poll_fill(&mut self.socket, cx))? == 0 {
                        self.input = Input::End;
                    }
                }
                Err(error) => self.deafen(error),
            },
            Input::Landing(landing) => {
                let (table, source) = (&self.table, (&mut self.socket, &mut self.buffer));
                let step =
                    landing.poll_step(source, &self.attempt, &table.memory, &table.counters, cx);
                match ready!(step)? {
                    Step::Took(bytes) => {
                        self.output.credit += bytes as u64;
                        if landing.missing() == 0 {
                            self.input = Input::Frames;
                        }
                    }
                    Step::Closed => {
                        self.input = Input::Skip(landing.missing());
                        self.late();
                    }
                    Step::End => self.input = Input::End,
                }
            }
            Input::Skip(missing) => {
                let empty = self.buffer.filled().is_empty();
                if empty && ready!(self.buffer.poll_fill(&mut self.socket, cx))? == 0 {
                    self.input = Input::End;
                    return Poll::Ready(Ok(()));
                }
                let skipped = self.buffer.filled().len().min(*missing);
                self.buffer.consume(skipped);
                *missing -= skipped;
                if *missing == 0 {
                    self.input = Input::Frames;
                }
            }
            Input::Deaf => {
                self.buffer.consume(usize::MAX);
                if ready!(self.buffer.poll_fill(&mut self.socket, cx))? == 0 {
                    self.input = Input::End;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn hear(&mut self, decoded: Decoded) {
        let now = Instant::now().into_std();
        match decoded.frame {
            Frame::Pages(head) => self.hear_pages(head, decoded.payload_bytes),
            Frame::Open(key, manifest) if key == self.key => {
                self.attempt.with(|state| state.open(now, &manifest));
            }
            Frame::KeepAlive(key) if key == self.key => {
                self.attempt.with(|state| state.renew(now));
                self.output.keep_alive = true;
            }
            Frame::Commit(key, commit) if key == self.key => {
                if self.attempt.status().closed {
                    return self.late();
                }
                self.attempt.with(|state| state.commit(commit));
            }
            Frame::Revoke(key) if key == self.key => self.attempt.with(ReceiveAttempt::revoke),
            Frame::RevokeAck(key) if key == self.key => {
                self.attempt.with(ReceiveAttempt::acknowledged);
            }
            Frame::Open(..)
            | Frame::KeepAlive(_)
            | Frame::Commit(..)
            | Frame::Revoke(_)
            | Frame::RevokeAck(_) => self.late(),
            other => self
                .attempt
                .with(|state| state.fail(TransferError::OutOfTurn(other.name()))),
        }
    }

    fn hear_pages(&mut self, head: PagesHead, payload_bytes: usize) {
        let (table, now) = (&self.table, Instant::now().into_std());
        let placed = head.marks.len() * table.memory.layout().piece_bytes();
        let verdict = self.attempt.with(|state| {
            let verdict = state.pages_arrive(now, &head, payload_bytes);
            if let (Verdict::Land { run, landed_before }, 0) = (&verdict, payload_bytes) {
                verify_in_place(
                    state,
                    &table.memory,
                    &table.counters,
                    &head,
                    *run,
                    landed_before,
                );
            }
            verdict
        });
        match verdict {
            Verdict::Land { .. } if payload_bytes == 0 => self.output.credit += placed as u64,
            Verdict::Land { run, landed_before } => {
                let piece_bytes = table.memory.layout().piece_bytes();
                self.input = Input::Landing(Landing::new(head, run, landed_before, piece_bytes));
            }
            Verdict::Drop => {
                if payload_bytes > 0 {
                    self.input = Input::Skip(payload_bytes);
                }
                self.late();
            }
        }
    }

    /// A frame that comes too late, or belongs to another attempt, has no effect but this.
    fn late(&mut self) {
        add(&self.table.counters.frames_late, 1);
        if self.output.end == EndWord::Said {
            self.output.end = EndWord::Asked;
        }
    }

    fn deafen(&mut self, error: FrameError) {
        tracing::debug!(%error, transfer = ?self.key.transfer_id, "malformed frame");
        add(&self.table.counters.frames_malformed, 1);
        self.attempt
            .with(|state| state.fail(TransferError::Frame(error)));
        self.input = Input::Deaf;
    }

    /// Puts into words what is due. `idle`: nothing more to read for now.
    fn compose(&mut self, idle: bool) {
        let output = &mut self.output;
        if output.said < output.bytes.len() || output.broken {
            return;
        }
        output.bytes.clear();
        output.said = 0;
        if self.attempt.status().closed {
            let Some(ending) = self.attempt.ending() else {
                return;
            };
            let frame = match (output.end, ending) {
                (EndWord::Said, _) => return,
                (EndWord::Due, Ending::Committed(_)) => Frame::CommitAck(self.key),
                (EndWord::Due, Ending::Revoked) => Frame::RevokeAck(self.key),
                (_, ending) => Frame::Closed(self.key, ending.reason()),
            };
            output.end = EndWord::Said;
            output.bytes = frame.encode(0);
            return;
        }
        if std::mem::take(&mut output.keep_alive) {
            output.bytes.extend(Frame::KeepAlive(self.key).encode(0));
        }
        if output.credit >= CREDIT_BYTES || (idle && output.credit > 0) {
            let credit = std::mem::take(&mut output.credit);
            output
                .bytes
                .extend(Frame::Credit(self.key, credit).encode(0));
        }
    }

    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let output = &mut self.output;
        if output.broken {
            return Poll::Pending;
        }
        if output.said == output.bytes.len() {
            if !self.socket.is_unflushed() {
                return Poll::Pending;
            }
            output.broken = ready!(self.socket.poll_flush(cx)).is_err();
            return Poll::Ready(());
        }
        match ready!(
            self.socket
                .poll_write(cx, &[IoSlice::new(&output.bytes[output.said..])])
        ) {
            Ok(written) => output.said += written,
            // What the peer has said before may still be there to read; reading tells of the end.
            Err(_) => output.broken = true,
        }
        Poll::Ready(())
    }
}

async fn linger(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
