//! The payload of one Pages frame on its way into memory. It must not know how frames are found.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use super::attempt::ReceiveAttempt;
use super::open_attempt::OpenAttempt;
use crate::checksum::{PieceName, piece_checksum};
use crate::counters::{Counters, add};
use crate::frame::{AttemptKey, PagesHead};
use crate::page_access::{PageMemory, PieceRun};
use crate::read_buffer::ReadBuffer;
use crate::socket::Socket;

/// Longest single read into pages: what the attempt's lock is held for.
const SLICE_BYTES: usize = 256 << 10;

/// Payload that has been judged and is arriving.
#[derive(Debug)]
pub(crate) struct Landing {
    head: PagesHead,
    run: PieceRun,
    landed_before: Vec<bool>,
    piece_bytes: usize,
    /// Payload bytes taken so far.
    taken: usize,
}

/// What one step of a landing did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// So many payload bytes were taken.
    Took(usize),
    /// The attempt has been closed: the rest is to be skipped.
    Closed,
    /// The stream ended.
    End,
}

impl Landing {
    pub(crate) fn new(
        head: PagesHead,
        run: PieceRun,
        landed_before: Vec<bool>,
        piece_bytes: usize,
    ) -> Self {
        Self {
            head,
            run,
            landed_before,
            piece_bytes,
            taken: 0,
        }
    }

    /// Payload bytes still to come.
    pub(crate) fn missing(&self) -> usize {
        self.landed_before.len() * self.piece_bytes - self.taken
    }

    /// Takes what the buffer holds, else what the socket gives.
    pub(crate) fn poll_step(
        &mut self,
        source: (&mut Socket, &mut ReadBuffer),
        attempt: &OpenAttempt,
        memory: &PageMemory,
        counters: &Counters,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Step>> {
        let (socket, buffer) = source;
        let piece = self.taken / self.piece_bytes;
        if self.landed_before[piece] {
            if buffer.filled().is_empty() && ready!(buffer.poll_fill(socket, cx))? == 0 {
                return Poll::Ready(Ok(Step::End));
            }
            let took = buffer
                .filled()
                .len()
                .min((piece + 1) * self.piece_bytes - self.taken);
            buffer.consume(took);
            attempt.with(|state| self.account(state, memory, counters, took));
            return Poll::Ready(Ok(Step::Took(took)));
        }
        let fresh = self.landed_before[piece..]
            .iter()
            .take_while(|before| !**before)
            .count();
        let limit = ((piece + fresh) * self.piece_bytes - self.taken).min(SLICE_BYTES);
        attempt.with(|state| {
            if state.ending().is_some() {
                return Poll::Ready(Ok(Step::Closed));
            }
            let taken = memory.fill(self.run, self.taken, limit, |place| {
                if buffer.filled().is_empty() {
                    return buffer.poll_through(socket, cx, place);
                }
                let count = place.len().min(buffer.filled().len());
                place[..count].copy_from_slice(&buffer.filled()[..count]);
                buffer.consume(count);
                Poll::Ready(Ok(count))
            });
            match ready!(taken)? {
                0 => Poll::Ready(Ok(Step::End)),
                took => {
                    self.account(state, memory, counters, took);
                    Poll::Ready(Ok(Step::Took(took)))
                }
            }
        })
    }

    /// Books bytes taken; pieces that are whole now are verified where they lie, while still in cache.
    fn account(
        &mut self,
        state: &mut ReceiveAttempt,
        memory: &PageMemory,
        counters: &Counters,
        took: usize,
    ) {
        let done = self.taken / self.piece_bytes;
        self.taken += took;
        state.renew(now());
        for step in done..self.taken / self.piece_bytes {
            let (position, stated) = (
                self.head.position + step as u32,
                self.head.marks[step].checksum,
            );
            if self.landed_before[step] {
                add(&counters.pieces_duplicate, 1);
                state.repeated(self.head.layer, position, stated);
            } else {
                add(&counters.bytes_received, self.piece_bytes as u64);
                verify(state, memory, &self.head, self.run, step as u32);
            }
        }
    }
}

/// Verifies pieces that the sender has written in place (shm).
pub(crate) fn verify_in_place(
    state: &mut ReceiveAttempt,
    memory: &PageMemory,
    counters: &Counters,
    head: &PagesHead,
    run: PieceRun,
    landed_before: &[bool],
) {
    let bytes = memory.layout().piece_bytes() as u64;
    for (step, before) in (0..run.count).zip(landed_before) {
        add(
            if *before {
                &counters.pieces_duplicate
            } else {
                &counters.bytes_received
            },
            if *before { 1 } else { bytes },
        );
        verify(state, memory, head, run, step);
    }
}

fn verify(
    state: &mut ReceiveAttempt,
    memory: &PageMemory,
    head: &PagesHead,
    run: PieceRun,
    step: u32,
) {
    let position = head.position + step;
    let AttemptKey {
        transfer_id,
        attempt,
    } = head.key;
    let name = PieceName {
        transfer_id,
        attempt,
        layer: head.layer,
        position,
    };
    let piece = PieceRun {
        layer: run.layer,
        page: run.page + step,
        count: 1,
    };
    let found = piece_checksum(&name, memory.bytes(piece));
    state.landed(
        head.layer,
        position,
        head.marks[step as usize].checksum,
        found,
    );
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
