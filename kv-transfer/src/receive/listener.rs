//! Accepts data connections and shakes hands. It must not know what follows the handshake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::Transport;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::Instant;

use super::connection::Connection;
use super::handshakes::{Handshakes, Place};
use super::table::{SocketFacts, Table};
use crate::counters::add;
use crate::error::Refusal;
use crate::frame::{Frame, Hello};
use crate::read_buffer::ReadBuffer;
use crate::shm::SharedMemory;
use crate::socket::Socket;

/// Pause after a failed accept (usually: out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, Arc<SharedMemory>),
}

impl Listener {
    /// Accepts until dropped.
    pub(crate) async fn run(self, table: Arc<Table>) {
        let mut handshakes = Handshakes::default();
        loop {
            match self.accept().await {
                Ok((socket, facts)) => {
                    let memory = match &self {
                        Self::Unix(_, memory) => Some(Arc::clone(memory)),
                        Self::Tcp(_) => None,
                    };
                    let place = handshakes.enter().await;
                    tokio::spawn(serve(Arc::clone(&table), socket, facts, memory, place));
                }
                Err(error) => {
                    tracing::warn!(%error, "data connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<(Socket, SocketFacts)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let facts = SocketFacts {
                    transport: Transport::Tcp,
                    same_user: false,
                };
                Ok((Socket::Tcp(stream), facts))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let same_user = crate::shm::same_user(&stream);
                let facts = SocketFacts {
                    transport: Transport::Shm,
                    same_user,
                };
                Ok((Socket::Unix(stream), facts))
            }
        }
    }
}

async fn serve(
    table: Arc<Table>,
    socket: Socket,
    facts: SocketFacts,
    memory: Option<Arc<SharedMemory>>,
    mut place: Place,
) {
    let mut buffer = ReadBuffer::new();
    let hello = match place.hold(read_hello(&socket, &mut buffer)).await {
        Some(Ok(Some(hello))) => hello,
        Some(Ok(None)) => return refuse(&table, &socket, &mut place, Refusal::Malformed).await,
        Some(Err(_)) | None => return add(&table.counters.handshakes_abandoned, 1),
    };
    let attempt = match table.admit(Instant::now().into_std(), &hello, facts) {
        Ok(attempt) => attempt,
        Err(refusal) => return refuse(&table, &socket, &mut place, refusal).await,
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
async fn read_hello(socket: &Socket, buffer: &mut ReadBuffer) -> io::Result<Option<Hello>> {
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

async fn refuse(table: &Table, socket: &Socket, place: &mut Place, refusal: Refusal) {
    tracing::debug!(%refusal, "handshake refused");
    table.counters.count_refusal(&refusal);
    let words = Frame::Refused(refusal).encode(0);
    // A peer that does not listen loses the reason, nothing else.
    let _ = place.hold(socket.write_all(&words)).await;
}
