//! Frames on their way out: words of our own, and pages that are read where they lie. It must not know
//! what they say.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use super::gate::Gate;
use crate::page_access::{PageMemory, PieceRun};
use crate::socket::Socket;

/// Slices in one write.
const MAX_SLICES: usize = 64;

#[derive(Debug)]
enum Segment {
    /// The start of a frame, perhaps all of it.
    Words(Vec<u8>),
    /// Payload of the frame before it.
    Pages(PieceRun, usize),
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Self::Words(words) => words.len(),
            Self::Pages(_, bytes) => *bytes,
        }
    }
}

/// Frames in order; the first may be half written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    segments: VecDeque<Segment>,
    /// Bytes of the first segment that have been written.
    written: usize,
    bytes: usize,
}

/// The gate was shut while pages were still to be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shut;

impl Outbox {
    pub(crate) fn push_words(&mut self, words: Vec<u8>) {
        self.bytes += words.len();
        self.segments.push_back(Segment::Words(words));
    }

    pub(crate) fn push_pages(&mut self, run: PieceRun, bytes: usize) {
        self.bytes += bytes;
        self.segments.push_back(Segment::Pages(run, bytes));
    }

    /// Bytes still to be written.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Drops frames of which nothing has been written. Returns whether a frame in writing still needs
    /// pages.
    pub(crate) fn drop_unstarted(&mut self) -> bool {
        let keep = match self.segments.front() {
            None => 0,
            Some(Segment::Words(_)) if self.written == 0 => 0,
            Some(Segment::Words(_)) if matches!(self.segments.get(1), Some(Segment::Pages(..))) => {
                2
            }
            Some(_) => 1,
        };
        self.segments.truncate(keep);
        self.bytes =
            self.segments.iter().map(Segment::len).sum::<usize>() - self.written.min(self.bytes);
        self.segments
            .iter()
            .any(|segment| matches!(segment, Segment::Pages(..)))
    }

    /// Writes once. Returns the payload bytes among those written.
    pub(crate) fn poll_write(
        &mut self,
        socket: &mut Socket,
        memory: &PageMemory,
        gate: &Gate,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Result<usize, Shut>>> {
        let needs_pages = self
            .segments
            .iter()
            .take(MAX_SLICES)
            .any(|s| matches!(s, Segment::Pages(..)));
        let wrote = if needs_pages {
            match gate.pass(|| self.write_slices(socket, memory, cx)) {
                Some(wrote) => wrote,
                None => return Poll::Ready(Ok(Err(Shut))),
            }
        } else {
            self.write_slices(socket, memory, cx)
        };
        let count = ready!(wrote)?;
        Poll::Ready(Ok(Ok(self.advance(count))))
    }

    fn write_slices(
        &self,
        socket: &mut Socket,
        memory: &PageMemory,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut count = 0;
        for (slice, segment) in slices.iter_mut().zip(&self.segments) {
            let bytes = match segment {
                Segment::Words(words) => words.as_slice(),
                Segment::Pages(run, _) => memory.bytes(*run),
            };
            let skip = if count == 0 { self.written } else { 0 };
            *slice = IoSlice::new(&bytes[skip..]);
            count += 1;
        }
        socket.poll_write(cx, &slices[..count])
    }

    fn advance(&mut self, mut count: usize) -> usize {
        let mut payload = 0;
        self.bytes -= count;
        while count > 0 {
            let Some(front) = self.segments.front() else {
                break;
            };
            let step = count.min(front.len() - self.written);
            if matches!(front, Segment::Pages(..)) {
                payload += step;
            }
            count -= step;
            self.written += step;
            if self.written == front.len() {
                self.segments.pop_front();
                self.written = 0;
            }
        }
        payload
    }
}
