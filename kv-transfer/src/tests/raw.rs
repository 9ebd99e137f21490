//! A scripted peer: says what a test tells it to, right or wrong.

use std::io::IoSlice;
use std::sync::Arc;

use baton_proto::domain::{Grant, Transport};
use tokio::net::{TcpStream, UnixStream};

use super::support::{SendingSide, piece, within};
use crate::checksum::{PieceName, piece_checksum, slots_digest, transfer_digest};
use crate::frame::{AttemptKey, Commit, Frame, Hello, Manifest, PageMark, PagesHead, Welcome};
use crate::read_buffer::ReadBuffer;
use crate::shm::PeerMemory;
use crate::socket::Socket;

/// A sender by hand.
pub(super) struct RawSender {
    pub(super) socket: Socket,
    pub(super) buffer: ReadBuffer,
    pub(super) key: AttemptKey,
    pub(super) memory: Option<Arc<PeerMemory>>,
}

/// A well-formed Hello for a grant.
pub(super) fn hello(grant: &Grant, host_id: &str) -> Hello {
    Hello {
        key: AttemptKey {
            transfer_id: grant.transfer_id,
            attempt: grant.attempt,
        },
        secret: grant.secret.clone(),
        sender: baton_proto::ids::Incarnation(200),
        receiver: grant.incarnation,
        host_id: host_id.to_owned(),
        wants_memory: true,
        slots_digest: slots_digest(grant.reused_pages, &grant.slots),
        fingerprint: grant.fingerprint.clone(),
    }
}

fn address(grant: &Grant, transport: Transport) -> &str {
    let endpoint = grant
        .endpoints
        .iter()
        .find(|endpoint| endpoint.transport == transport);
    &endpoint.expect("endpoint").address
}

impl RawSender {
    pub(super) async fn connect(grant: &Grant, transport: Transport) -> Self {
        let address = address(grant, transport);
        let socket = match transport {
            Transport::Tcp => Socket::Tcp(TcpStream::connect(address).await.expect("connect")),
            Transport::Shm => Socket::Unix(UnixStream::connect(address).await.expect("connect")),
        };
        let key = AttemptKey {
            transfer_id: grant.transfer_id,
            attempt: grant.attempt,
        };
        Self {
            socket,
            buffer: ReadBuffer::new(),
            key,
            memory: None,
        }
    }

    /// Connects, shakes hands and maps the pool (shm).
    pub(super) async fn admitted(grant: &Grant, transport: Transport, region_bytes: usize) -> Self {
        let mut raw = Self::connect(grant, transport).await;
        raw.say(&Frame::Hello(Box::new(hello(grant, &crate::host_id()))))
            .await;
        raw.welcomed(region_bytes).await;
        raw
    }

    pub(super) async fn welcomed(&mut self, region_bytes: usize) -> Welcome {
        if let Socket::Unix(stream) = &mut self.socket {
            let mut words = [0; 512];
            let received = crate::shm::receive_with_memory(stream, &mut words);
            let (read, descriptor) = within("welcome", received).await.expect("welcome");
            self.buffer.append(&words[..read]);
            if let Some(descriptor) = descriptor {
                self.memory = Some(Arc::new(
                    PeerMemory::map(&descriptor, region_bytes).expect("map"),
                ));
            }
        }
        match self.hear().await {
            Some(Frame::Welcome(welcome)) => welcome,
            other => panic!("not welcomed: {other:?}"),
        }
    }

    pub(super) async fn say(&mut self, frame: &Frame) {
        self.say_bytes(&frame.encode(0)).await;
    }

    pub(super) async fn say_bytes(&mut self, bytes: &[u8]) {
        // The receiver may have hung up on purpose; what it says tells.
        let _ = within("write", self.socket.write_all(bytes)).await;
    }

    /// The next frame; `None` once the receiver has hung up.
    pub(super) async fn hear(&mut self) -> Option<Frame> {
        loop {
            if let Some(decoded) = self.buffer.next_frame().expect("frame") {
                return Some(decoded.frame);
            }
            let (buffer, socket) = (&mut self.buffer, &mut self.socket);
            let read = within(
                "read",
                std::future::poll_fn(|cx| buffer.poll_fill(socket, cx)),
            )
            .await;
            if read.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// The next frame that is not credit or an echo.
    pub(super) async fn hear_word(&mut self) -> Option<Frame> {
        loop {
            match self.hear().await {
                Some(Frame::Credit(..) | Frame::KeepAlive(_)) => {}
                other => return other,
            }
        }
    }

    pub(super) async fn open(&mut self, manifest: Manifest) {
        self.say(&Frame::Open(self.key, manifest)).await;
    }

    /// Says a run and its payload (tcp), or writes it in place first (shm).
    pub(super) async fn pages(&mut self, pages: &RawPages) {
        let payload: Vec<u8> = pages.bytes.concat();
        if let Some(memory) = &self.memory {
            for (step, bytes) in pages.bytes.iter().enumerate() {
                let page = pages.head.page + step as u32;
                memory.write(pages.layout.piece_offset(pages.head.layer, page), bytes);
            }
            return self.say(&Frame::Pages(pages.head.clone())).await;
        }
        let head = Frame::Pages(pages.head.clone()).encode(payload.len());
        let mut words = head;
        words.extend_from_slice(&payload);
        self.say_bytes(&words).await;
    }

    /// Whether the socket still takes words (the other side has not reset it).
    pub(super) async fn alive(&mut self) -> bool {
        let words = Frame::KeepAlive(self.key).encode(0);
        std::future::poll_fn(|cx| self.socket.poll_write(cx, &[IoSlice::new(&words)]))
            .await
            .is_ok()
    }
}

/// A run with its bytes, right until a test spoils it.
#[derive(Clone)]
pub(super) struct RawPages {
    pub(super) head: PagesHead,
    pub(super) bytes: Vec<Vec<u8>>,
    pub(super) layout: baton_kv_cache::KvLayout,
}

/// What a whole transfer would say: manifest, one run per (layer, page), Commit.
pub(super) struct Script {
    pub(super) manifest: Manifest,
    pub(super) runs: Vec<RawPages>,
    pub(super) commit: Commit,
}

/// The script of a transfer of `local` pages (behind the reused prefix) under a grant.
pub(super) fn script(
    sent: &SendingSide,
    grant: &Grant,
    local: &[u32],
    prompt_tokens: u32,
    receiver: baton_kv_cache::KvLayout,
) -> Script {
    let layout = sent.layout;
    let (transfer_id, attempt) = (grant.transfer_id, grant.attempt);
    let (mut runs, mut checksums) = (Vec::new(), Vec::new());
    for layer in 0..layout.layers {
        for (index, (page, slot)) in (0u32..).zip(local.iter().zip(&grant.slots)) {
            let bytes = piece(&*sent.memory, &layout, layer, *page);
            let position = grant.reused_pages + index;
            let checksum = piece_checksum(
                &PieceName {
                    transfer_id,
                    attempt,
                    layer,
                    position,
                },
                &bytes,
            );
            checksums.push(checksum);
            runs.push(RawPages {
                head: PagesHead {
                    key: AttemptKey {
                        transfer_id,
                        attempt,
                    },
                    layer,
                    position,
                    page: slot.page,
                    marks: vec![PageMark {
                        generation: slot.generation,
                        checksum,
                    }],
                },
                bytes: vec![bytes],
                layout: receiver,
            });
        }
    }
    let bytes = checksums.len() as u64 * layout.piece_bytes() as u64;
    Script {
        manifest: Manifest {
            pages: grant.slots.len() as u32,
            reused_pages: grant.reused_pages,
            layers: layout.layers,
            piece_bytes: layout.piece_bytes() as u32,
            prompt_tokens,
            bytes,
        },
        commit: Commit {
            pieces: checksums.len() as u64,
            bytes,
            digest: transfer_digest(transfer_id, attempt, &checksums),
            payload: b"first tokens".to_vec(),
        },
        runs,
    }
}
