//! A connected data socket of either transport. It must not know frames.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A stream of any kind.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// TCP or Unix stream, or one that somebody else has made.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Boxed(Boxed),
}

/// A stream that may keep back what was written until it is flushed.
pub(crate) struct Boxed {
    stream: Box<dyn ByteStream>,
    unflushed: bool,
}

impl fmt::Debug for Boxed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Boxed").finish_non_exhaustive()
    }
}

impl Socket {
    pub(crate) fn boxed(stream: Box<dyn ByteStream>) -> Self {
        Self::Boxed(Boxed {
            stream,
            unflushed: false,
        })
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let read = match self {
                Self::Tcp(stream) => {
                    ready!(stream.poll_read_ready(cx))?;
                    stream.try_read_vectored(buffers)
                }
                Self::Unix(stream) => {
                    ready!(stream.poll_read_ready(cx))?;
                    stream.try_read_vectored(buffers)
                }
                Self::Boxed(boxed) => return boxed.poll_read(cx, buffers),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let written = match self {
                Self::Tcp(stream) => {
                    ready!(stream.poll_write_ready(cx))?;
                    stream.try_write_vectored(buffers)
                }
                Self::Unix(stream) => {
                    ready!(stream.poll_write_ready(cx))?;
                    stream.try_write_vectored(buffers)
                }
                Self::Boxed(boxed) => ready!(boxed.poll_write(cx, buffers)),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                other => return Poll::Ready(other),
            }
        }
    }

    /// Whether something written may not have left yet: poll [`Self::poll_flush`] until it has.
    pub(crate) fn is_unflushed(&self) -> bool {
        matches!(self, Self::Boxed(boxed) if boxed.unflushed)
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Self::Boxed(boxed) = self
            && boxed.unflushed
        {
            ready!(Pin::new(&mut boxed.stream).poll_flush(cx))?;
            boxed.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Says nothing more, and takes whatever comes until the peer says nothing more either.
    pub(crate) async fn hang_up(&mut self) {
        let stream: &mut dyn ByteStream = match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
            Self::Boxed(boxed) => &mut boxed.stream,
        };
        // A peer that is gone shows below.
        let _ = stream.shutdown().await;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    }

    /// Writes and flushes.
    pub(crate) async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written =
                std::future::poll_fn(|cx| self.poll_write(cx, &[IoSlice::new(bytes)])).await?;
            bytes = &bytes[written..];
        }
        std::future::poll_fn(|cx| self.poll_flush(cx)).await
    }
}

impl Boxed {
    /// Fills buffers in order until nothing more is there.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut total = 0;
        for buffer in buffers.iter_mut() {
            let mut place = ReadBuf::new(buffer);
            while place.remaining() > 0 {
                let before = place.filled().len();
                let polled = Pin::new(&mut self.stream).poll_read(cx, &mut place);
                let read = place.filled().len() - before;
                total += read;
                match polled {
                    // What has been read is told first; the end or the error shows again.
                    Poll::Pending if total == 0 => return Poll::Pending,
                    Poll::Ready(Err(error)) if total == 0 => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) if read > 0 => {}
                    _ => return Poll::Ready(Ok(total)),
                }
            }
        }
        Poll::Ready(Ok(total))
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.unflushed = true;
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }
}
