//! One direction of a connection: bytes under way and bytes that nobody has read yet. Pure: it is told
//! the time and wakes whoever waits. It must not know why a network is slow.

use std::collections::VecDeque;
use std::io;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

/// Bytes that may be under way or unread; more must wait.
pub(super) const CAPACITY: usize = 256 << 10;

/// What is under way.
#[derive(Debug)]
enum Parcel {
    Bytes(VecDeque<u8>),
    /// The writer has closed its end.
    End,
    /// The connection is gone, with what was not read.
    Reset,
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// So many bytes; 0 is the end.
    Bytes(usize),
    /// Nothing before then.
    At(Instant),
    /// Nothing for now.
    Nothing,
    /// The connection is gone.
    Reset,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    under_way: VecDeque<(Instant, Parcel)>,
    bytes: usize,
    /// What the reader has come to: an end or a reset.
    came_to: Option<Read>,
    /// Nobody will read any more.
    pub(super) deserted: bool,
    /// Whatever goes in is lost, and nobody is told.
    pub(super) swallowed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    /// Takes as many bytes as there is room for; 0: none now.
    pub(super) fn write(&mut self, due: Instant, bytes: &[u8]) -> usize {
        let count = bytes.len().min(CAPACITY - self.bytes);
        if count > 0 {
            self.bytes += count;
            self.put(due, Parcel::Bytes(bytes[..count].iter().copied().collect()));
        }
        count
    }

    /// The writer is done.
    pub(super) fn end(&mut self, due: Instant) {
        self.put(due, Parcel::End);
    }

    /// The connection breaks.
    pub(super) fn reset(&mut self, due: Instant) {
        self.put(due, Parcel::Reset);
        self.wake_writer();
    }

    fn put(&mut self, due: Instant, parcel: Parcel) {
        // Nothing overtakes what is under way.
        let due = self
            .under_way
            .back()
            .map_or(due, |(last, _)| due.max(*last));
        self.under_way.push_back((due, parcel));
        self.wake_reader();
    }

    /// Reads what has arrived into `place`, which is not empty.
    pub(super) fn read(&mut self, now: Instant, place: &mut [u8]) -> Read {
        match self.came_to {
            Some(Read::Reset) => return Read::Reset,
            Some(_) => return Read::Bytes(0),
            None => {}
        }
        let mut count = 0;
        while let Some((due, parcel)) = self.under_way.front_mut() {
            if *due > now {
                let due = *due;
                return if count > 0 {
                    self.took(count)
                } else {
                    Read::At(due)
                };
            }
            match parcel {
                Parcel::Bytes(bytes) => {
                    let some = bytes.len().min(place.len() - count);
                    for (to, from) in place[count..].iter_mut().zip(bytes.drain(..some)) {
                        *to = from;
                    }
                    count += some;
                    if !bytes.is_empty() {
                        return self.took(count);
                    }
                    self.under_way.pop_front();
                }
                Parcel::End if count == 0 => {
                    self.came_to = Some(Read::Bytes(0));
                    return Read::Bytes(0);
                }
                Parcel::Reset if count == 0 => {
                    self.came_to = Some(Read::Reset);
                    return Read::Reset;
                }
                Parcel::End | Parcel::Reset => return self.took(count),
            }
        }
        if count > 0 {
            self.took(count)
        } else {
            Read::Nothing
        }
    }

    fn took(&mut self, count: usize) -> Read {
        self.bytes -= count;
        self.wake_writer();
        Read::Bytes(count)
    }

    /// What is under way starts anew: it was held up.
    pub(super) fn resend(&mut self, now: Instant, latency: Duration) {
        for (due, _) in &mut self.under_way {
            *due = (*due).max(now + latency);
        }
        self.wake_reader();
        self.wake_writer();
    }

    pub(super) fn reader_waits(&mut self, waker: &Waker) {
        keep(&mut self.reader, waker);
    }

    pub(super) fn writer_waits(&mut self, waker: &Waker) {
        keep(&mut self.writer, waker);
    }

    pub(super) fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    pub(super) fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}

fn keep(place: &mut Option<Waker>, waker: &Waker) {
    match place {
        Some(kept) => kept.clone_from(waker),
        None => *place = Some(waker.clone()),
    }
}

/// As an operating system tells of a broken connection.
pub(super) fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_come_when_due_in_order_and_then_the_end() {
        let (mut pipe, now) = (Pipe::default(), Instant::now());
        let later = now + Duration::from_millis(5);
        assert_eq!(pipe.write(later, b"abc"), 3);
        assert_eq!(pipe.write(now, b"de"), 2);
        pipe.end(now);
        let mut place = [0; 4];
        assert_eq!(pipe.read(now, &mut place), Read::At(later));
        assert_eq!(pipe.read(later, &mut place), Read::Bytes(4));
        assert_eq!(&place, b"abcd");
        assert_eq!(pipe.read(later, &mut place), Read::Bytes(1));
        assert_eq!(pipe.read(later, &mut place), Read::Bytes(0));
        assert_eq!(pipe.read(later, &mut place), Read::Bytes(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_pipe_takes_nothing_until_it_is_read() {
        let (mut pipe, now) = (Pipe::default(), Instant::now());
        assert_eq!(pipe.write(now, &vec![1; CAPACITY + 9]), CAPACITY);
        assert_eq!(pipe.write(now, &[1]), 0);
        assert_eq!(pipe.read(now, &mut [0; 7]), Read::Bytes(7));
        assert_eq!(pipe.write(now, &[1; 9]), 7);
    }
}
