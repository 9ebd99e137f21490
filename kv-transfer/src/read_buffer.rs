//! Bytes read ahead of the frames they belong to. Bounded; it must not know what frames mean.

use std::io::{self, IoSliceMut};
use std::task::{Context, Poll, ready};

use crate::frame::{Decoded, FrameError, HEADER_BYTES, MAX_COMMIT_PAYLOAD_BYTES, decode_frame};
use crate::socket::Socket;

const USUAL_BYTES: usize = 64 << 10;
/// No frame without payload is longer than Commit.
const MOST_BYTES: usize = MAX_COMMIT_PAYLOAD_BYTES + 4096;

/// Read-ahead of one connection.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; USUAL_BYTES],
            start: 0,
            end: 0,
        }
    }

    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes.min(self.end - self.start);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// The frame at the front, if it is complete.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Decoded>, FrameError> {
        let decoded = decode_frame(self.filled())?;
        if let Some(decoded) = &decoded {
            self.consume(decoded.consumed);
        }
        Ok(decoded)
    }

    /// Reads more behind what is there. `Ok(0)` is the end of the stream.
    pub(crate) fn poll_fill(
        &mut self,
        socket: &mut Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.make_room();
        let read =
            ready!(socket.poll_read(cx, &mut [IoSliceMut::new(&mut self.bytes[self.end..])]))?;
        self.end += read;
        Poll::Ready(Ok(read))
    }

    /// Reads into `place` first, and what follows into this (empty) buffer, in one call.
    /// Returns the bytes for `place`; 0 is the end of the stream.
    pub(crate) fn poll_through(
        &mut self,
        socket: &mut Socket,
        cx: &mut Context<'_>,
        place: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        /// Behind much payload, room for the next heads: hardly any payload takes the detour.
        const AHEAD_BYTES: usize = 2048;
        /// Behind little, the whole buffer: copying twice costs less than reading often.
        const LITTLE_BYTES: usize = 32 << 10;
        let ahead = if place.len() < LITTLE_BYTES {
            USUAL_BYTES
        } else {
            AHEAD_BYTES
        };
        debug_assert!(self.filled().is_empty() && !place.is_empty());
        let length = place.len();
        let mut buffers = [
            IoSliceMut::new(place),
            IoSliceMut::new(&mut self.bytes[..ahead]),
        ];
        let read = ready!(socket.poll_read(cx, &mut buffers))?;
        (self.start, self.end) = (0, read.saturating_sub(length));
        Poll::Ready(Ok(read.min(length)))
    }

    /// Appends bytes that were read by other means (with a descriptor attached).
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.make_room();
        let room = self.bytes.len() - self.end;
        debug_assert!(bytes.len() <= room);
        let count = bytes.len().min(room);
        self.bytes[self.end..self.end + count].copy_from_slice(&bytes[..count]);
        self.end += count;
    }

    fn make_room(&mut self) {
        if self.start > 0 && self.bytes.len() - self.end < self.bytes.len() / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        // Only a Commit frame, whose length has been checked, needs more than the usual.
        if self.end == self.bytes.len() && self.bytes.len() < MOST_BYTES + HEADER_BYTES {
            self.bytes.resize(MOST_BYTES + HEADER_BYTES, 0);
        }
    }
}
