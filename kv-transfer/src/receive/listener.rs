//! Accepts data connections and shakes hands. It must not know what follows the handshake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::Transport;
use tokio::net::UnixListener;
use tokio::time::Instant;

use super::connection::Connection;
use super::handshakes::{Handshakes, Place};
use super::table::{SocketFacts, Table};
use crate::counters::add;
use crate::error::Refusal;
use crate::frame::{Frame, Hello};
use crate::network::{DataStream, Listen, Opening};
use crate::read_buffer::ReadBuffer;
use crate::shm::SharedMemory;
use crate::socket::Socket;

/// Pause after a failed accept (usually: out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) enum Listener {
    Tcp(Box<dyn Listen>),
    Unix(UnixListener, Arc<SharedMemory>),
}

impl Listener {
    /// Accepts until dropped.
    pub(crate) async fn run(mut self, table: Arc<Table>) {
        let mut handshakes = Handshakes::default();
        loop {
            match self.accept().await {
                Ok((opening, facts)) => {
                    let memory = match &self {
                        Self::Unix(_, memory) => Some(Arc::clone(memory)),
                        Self::Tcp(_) => None,
                    };
                    let place = handshakes.enter().await;
                    tokio::spawn(serve(Arc::clone(&table), opening, facts, memory, place));
                }
                Err(error) => {
                    tracing::warn!(%error, "data connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn accept(&mut self) -> io::Result<(Opening<'static, DataStream>, SocketFacts)> {
        match self {
            Self::Tcp(listener) => {
                let opening = listener.accept().await?;
                let facts = SocketFacts {
                    transport: Transport::Tcp,
                    same_user: false,
                };
                Ok((opening, facts))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let same_user = crate::shm::same_user(&stream);
                let facts = SocketFacts {
                    transport: Transport::Shm,
                    same_user,
                };
                let socket = DataStream(Socket::Unix(stream));
                Ok((Box::pin(async { Ok(socket) }), facts))
            }
        }
    }
}

async fn serve(
    table: Arc<Table>,
    opening: Opening<'static, DataStream>,
    facts: SocketFacts,
    memory: Option<Arc<SharedMemory>>,
    mut place: Place,
) {
    let mut socket = match place.hold(opening).await {
        Some(Ok(stream)) => stream.0,
        failed => {
            if let Some(Err(error)) = failed {
                tracing::debug!(%error, "data connection not opened");
            }
            return add(&table.counters.handshakes_abandoned, 1);
        }
    };
    let mut buffer = ReadBuffer::new();
    let hello = match place.hold(read_hello(&mut socket, &mut buffer)).await {
        Some(Ok(Some(hello))) => hello,
        Some(Ok(None)) => return refuse(&table, &mut socket, &mut place, Refusal::Malformed).await,
        Some(Err(_)) | None => return add(&table.counters.handshakes_abandoned, 1),
    };
    let attempt = match table.admit(Instant::now().into_std(), &hello, facts) {
        Ok(attempt) => attempt,
        Err(refusal) => return refuse(&table, &mut socket, &mut place, refusal).await,
    };
    drop(place);
    let attached = memory.filter(|_| hello.wants_memory);
    let welcome = Frame::Welcome(table.welcome(attached.is_some())).encode(0);
    let rest = match (&socket, &attached) {
        (Socket::Unix(stream), Some(memory)) => {
            crate::shm::send_with_memory(stream, &welcome, memory)
                .await
                .map(|sent| welcome[sent..].to_vec())
        }
        _ => Ok(welcome),
    };
    match rest {
        Ok(first_words) => {
            Connection::new(table, attempt, socket, buffer, first_words)
                .run()
                .await;
        }
        // The peer never got to know that it may write.
        Err(error) => attempt.with(|state| state.disconnected(&error.to_string())),
    }
}

/// The first frame; `None` if it is anything but a Hello.
async fn read_hello(socket: &mut Socket, buffer: &mut ReadBuffer) -> io::Result<Option<Hello>> {
    loop {
        match buffer.next_frame() {
            Ok(Some(decoded)) => match decoded.frame {
                Frame::Hello(hello) => return Ok(Some(*hello)),
                _ => return Ok(None),
            },
            Ok(None) => {}
            Err(_) => return Ok(None),
        }
        let read = std::future::poll_fn(|cx| buffer.poll_fill(socket, cx)).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn refuse(table: &Table, socket: &mut Socket, place: &mut Place, refusal: Refusal) {
    tracing::debug!(%refusal, "handshake refused");
    table.counters.count_refusal(&refusal);
    let words = Frame::Refused(refusal).encode(0);
    // A peer that does not listen loses the reason, nothing else.
    let _ = place.hold(socket.write_all(&words)).await;
}
