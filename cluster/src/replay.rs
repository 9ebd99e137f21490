//! A stream of which the first bytes have been looked at already. It must not know what they mean.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use crate::stream::{BoxStream, ByteStream};

/// How long the other side may take to hear why it is refused.
const FAREWELL: Duration = Duration::from_millis(500);

/// Gives the seen bytes again, then what follows.
pub struct Replay {
    again: Vec<u8>,
    at: usize,
    stream: BoxStream,
}

impl Replay {
    pub(crate) fn new(seen: &[u8], stream: BoxStream) -> Self {
        Self {
            again: seen.to_vec(),
            at: 0,
            stream,
        }
    }
}

/// Closes a connection so that what was said last is still heard: a connection closed over unread bytes
/// is reset, and a reset can overtake words.
pub(crate) async fn part(mut stream: impl ByteStream) {
    let farewell = async {
        let mut unread = [0; 1024];
        stream.shutdown().await?;
        while stream.read(&mut unread).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // Gone, or too slow: closed in any case.
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

impl AsyncRead for Replay {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let again = &this.again[this.at..];
        if again.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        }
        let count = again.len().min(buffer.remaining());
        buffer.put_slice(&again[..count]);
        this.at += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Replay {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
