//! One end of a connection, as its process reads and writes it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::pipe::{Read, reset};
use super::{Network, PipeId, ProcessId};

/// One end. Dropping it closes it.
pub struct Stream {
    pub(super) network: Network,
    pub(super) owner: ProcessId,
    pub(super) from: PipeId,
    pub(super) to: PipeId,
    pub(super) peer: SocketAddr,
    /// Runs while bytes are under way.
    pub(super) arrival: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    /// Address of the other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The arrival of what is under way.
    fn poll_arrival(&mut self, at: Instant, context: &mut Context<'_>) -> Poll<()> {
        let arrival = self
            .arrival
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if arrival.deadline() != at {
            arrival.as_mut().reset(at);
        }
        arrival.as_mut().poll(context)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let read = this.network.with(|net| {
                if net.is_dead(this.owner) {
                    return Read::Reset;
                }
                let held = net.is_held(this.from);
                let pipe = net.pipe(this.from);
                let place = buffer.initialize_unfilled();
                let read = if held {
                    Read::Nothing
                } else {
                    pipe.read(Instant::now(), place)
                };
                if matches!(read, Read::Nothing | Read::At(_)) {
                    pipe.reader_waits(context.waker());
                }
                read
            });
            match read {
                Read::Bytes(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Read::At(due) => ready!(this.poll_arrival(due, context)),
                Read::Nothing => return Poll::Pending,
                Read::Reset => return Poll::Ready(Err(reset())),
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &*self;
        this.network.with(|net| {
            if net.is_dead(this.owner) || net.pipe(this.to).deserted {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let due = net.due(this.to);
            let is_frozen = net.is_frozen(this.owner);
            let pipe = net.pipe(this.to);
            let count = if is_frozen { 0 } else { pipe.write(due, bytes) };
            if count == 0 && !bytes.is_empty() {
                pipe.writer_waits(context.waker());
                return Poll::Pending;
            }
            Poll::Ready(Ok(count))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.network.with(|net| net.end(self.to));
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.network.with(|net| net.hang_up(self.from, self.to));
    }
}
