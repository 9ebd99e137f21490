//! Reaching a receiver: endpoints in order, handshake, one time limit. It must not know what is sent.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use baton_kv_cache::KvLayout;
use baton_proto::domain::{Grant, TransferEndpoint, Transport};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::peers::Peers;
use super::reachable::objection;
use super::writer::{InPlace, OnTheWire, PageWriter};
use crate::checksum::slots_digest;
use crate::counters::{Counters, add};
use crate::error::{Refusal, TransferError};
use crate::frame::{AttemptKey, Frame, Hello, Welcome};
use crate::identity::{Identity, TransportChoice};
use crate::network::Network;
use crate::read_buffer::ReadBuffer;
use crate::shm::{PeerMemory, is_socket_name};
use crate::socket::Socket;

/// A connection that has been welcomed.
pub(crate) struct Link {
    pub(crate) socket: Socket,
    pub(crate) buffer: ReadBuffer,
    pub(crate) writer: Box<dyn PageWriter>,
    pub(crate) credit_bytes: u64,
}

/// What a sender dials with.
#[derive(Debug, Clone)]
pub(crate) struct Dialer {
    pub(crate) identity: Identity,
    pub(crate) layout: KvLayout,
    pub(crate) transports: TransportChoice,
    pub(crate) timeout: Duration,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) counters: Arc<Counters>,
}

/// How one endpoint failed.
enum Miss {
    /// Another endpoint may do.
    Endpoint(String),
    Final(TransferError),
}

impl From<io::Error> for Miss {
    fn from(error: io::Error) -> Self {
        Self::Endpoint(error.to_string())
    }
}

/// Connects to the first address of `host:port` that a receiver can be at.
async fn connect(network: &dyn Network, address: &str) -> Result<Socket, Miss> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let mut last = Miss::Endpoint("the name has no address".to_owned());
    for candidate in tokio::net::lookup_host(address).await? {
        if let Some(objection) = objection(candidate) {
            last = Miss::Endpoint(format!(
                "{candidate} is {objection}, where no receiver can be"
            ));
            continue;
        }
        match network.connect(host.to_owned(), candidate).await {
            Ok(stream) => return Ok(stream.0),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

impl Dialer {
    /// Connects to the best endpoint that works.
    pub(crate) async fn dial(&self, grant: &Grant) -> Result<Link, TransferError> {
        let limit_ms = self.timeout.as_millis() as u64;
        tokio::time::timeout(self.timeout, self.try_endpoints(grant))
            .await
            .unwrap_or(Err(TransferError::ConnectTimeout { limit_ms }))
    }

    async fn try_endpoints(&self, grant: &Grant) -> Result<Link, TransferError> {
        let mut misses = Vec::new();
        let mut missed_shm = false;
        for endpoint in &grant.endpoints {
            let tried = match endpoint.transport {
                Transport::Shm => self.try_shm(grant, endpoint).await,
                Transport::Tcp => self.try_tcp(grant, endpoint).await,
            };
            match tried {
                Ok(link) => {
                    add(&self.counters.shm_fallbacks, u64::from(missed_shm));
                    return Ok(link);
                }
                Err(Miss::Final(error)) => return Err(error),
                Err(Miss::Endpoint(detail)) => {
                    missed_shm |=
                        endpoint.transport == Transport::Shm && self.transports.allows_shm();
                    misses.push(format!("{}: {detail}", endpoint.address));
                }
            }
        }
        let detail = if misses.is_empty() {
            "the grant names none".to_owned()
        } else {
            misses.join("; ")
        };
        Err(TransferError::NoEndpoint { detail })
    }

    async fn try_tcp(&self, grant: &Grant, endpoint: &TransferEndpoint) -> Result<Link, Miss> {
        if !self.transports.allows_tcp() {
            return Err(Miss::Endpoint("tcp is switched off here".to_owned()));
        }
        let mut socket = connect(&*self.network, &endpoint.address).await?;
        socket.write_all(&self.hello(grant, false)).await?;
        let mut buffer = ReadBuffer::new();
        let welcome = loop {
            if let Some(welcome) = self.answer(&mut buffer)? {
                break welcome;
            }
            if std::future::poll_fn(|cx| buffer.poll_fill(&mut socket, cx)).await? == 0 {
                return Err(Miss::Final(TransferError::lost(
                    "closed during the handshake",
                )));
            }
        };
        self.check(grant, &welcome)?;
        let writer = Box::new(OnTheWire);
        Ok(Link {
            socket,
            buffer,
            writer,
            credit_bytes: welcome.credit_bytes,
        })
    }

    /// Why shm is not tried at this endpoint, if it is not.
    fn against_shm(&self, grant: &Grant, endpoint: &TransferEndpoint) -> Option<&'static str> {
        if !self.transports.allows_shm() {
            return Some("shm is switched off here");
        }
        let here = &self.identity.host_id;
        if here.is_empty() || *here != endpoint.host_id {
            return Some("another host");
        }
        if self.peers.shm_broken(grant.incarnation) {
            return Some("this peer's pool could not be mapped");
        }
        // A grant is another's word: it leads to receivers, and to nothing else that listens here.
        let name = Path::new(&endpoint.address).file_name();
        if !name.is_some_and(|name| is_socket_name(&name.to_string_lossy())) {
            return Some("no name of a receiver's socket");
        }
        None
    }

    async fn try_shm(&self, grant: &Grant, endpoint: &TransferEndpoint) -> Result<Link, Miss> {
        if let Some(why) = self.against_shm(grant, endpoint) {
            return Err(Miss::Endpoint(why.to_owned()));
        }
        let mut stream = UnixStream::connect(&endpoint.address).await?;
        if !crate::shm::same_user(&stream) {
            return Err(Miss::Endpoint("another user".to_owned()));
        }
        let known = self.peers.memory(grant.incarnation);
        stream
            .write_all(&self.hello(grant, known.is_none()))
            .await?;
        let (mut buffer, mut words, mut descriptor) = (ReadBuffer::new(), [0; 1024], None);
        let welcome = loop {
            if let Some(welcome) = self.answer(&mut buffer)? {
                break welcome;
            }
            let (read, attached) = crate::shm::receive_with_memory(&stream, &mut words).await?;
            if read == 0 {
                return Err(Miss::Final(TransferError::lost(
                    "closed during the handshake",
                )));
            }
            descriptor = descriptor.or(attached);
            buffer.append(&words[..read]);
        };
        self.check(grant, &welcome)?;
        let layout = KvLayout {
            pages: welcome.pool_pages,
            ..self.layout
        };
        check_slots(grant, &layout)?;
        let memory = match (known, descriptor) {
            (Some(memory), _) => memory,
            (None, Some(descriptor)) => self
                .map(grant, descriptor, &layout, &endpoint.address)
                .await
                .map_err(Miss::Final)?,
            (None, None) => {
                let detail = "the receiver sent no descriptor".to_owned();
                return Err(Miss::Final(TransferError::Memory { detail }));
            }
        };
        if memory.len() < layout.region_bytes() {
            let detail = format!(
                "mapped {} bytes, stated {}",
                memory.len(),
                layout.region_bytes()
            );
            return Err(Miss::Final(TransferError::Memory { detail }));
        }
        let writer = Box::new(InPlace::new(memory, layout));
        Ok(Link {
            socket: Socket::Unix(stream),
            buffer,
            writer,
            credit_bytes: welcome.credit_bytes,
        })
    }

    async fn map(
        &self,
        grant: &Grant,
        descriptor: std::os::fd::OwnedFd,
        layout: &KvLayout,
        socket: &str,
    ) -> Result<Arc<PeerMemory>, TransferError> {
        let bytes = layout.region_bytes();
        // System calls on memory that another process made: not on a thread that drives connections.
        let mapped = tokio::task::spawn_blocking(move || PeerMemory::map(&descriptor, bytes)).await;
        match mapped.unwrap_or_else(|error| {
            Err(TransferError::Memory {
                detail: error.to_string(),
            })
        }) {
            Ok(memory) => {
                let memory = Arc::new(memory);
                self.peers
                    .keep_memory(grant.incarnation, &memory, socket.into());
                Ok(memory)
            }
            Err(error) => {
                self.peers.break_shm(grant.incarnation);
                Err(error)
            }
        }
    }

    fn hello(&self, grant: &Grant, wants_memory: bool) -> Vec<u8> {
        let hello = Hello {
            key: AttemptKey {
                transfer_id: grant.transfer_id,
                attempt: grant.attempt,
            },
            secret: grant.secret.clone(),
            sender: self.identity.incarnation,
            receiver: grant.incarnation,
            host_id: self.identity.host_id.clone(),
            wants_memory,
            slots_digest: slots_digest(grant.reused_pages, &grant.slots),
            fingerprint: self.identity.fingerprint.clone(),
        };
        Frame::Hello(Box::new(hello)).encode(0)
    }

    /// The receiver's answer, once it is whole.
    fn answer(&self, buffer: &mut ReadBuffer) -> Result<Option<Welcome>, Miss> {
        let decoded = buffer
            .next_frame()
            .map_err(|error| Miss::Final(error.into()))?;
        match decoded.map(|decoded| decoded.frame) {
            None => Ok(None),
            Some(Frame::Welcome(welcome)) => Ok(Some(welcome)),
            Some(Frame::Refused(refusal)) => {
                self.counters.count_refusal(&refusal);
                Err(miss(refusal))
            }
            Some(other) => Err(Miss::Final(TransferError::OutOfTurn(other.name()))),
        }
    }

    fn check(&self, grant: &Grant, welcome: &Welcome) -> Result<(), Miss> {
        if welcome.receiver != grant.incarnation {
            let (wanted, found) = (grant.incarnation, welcome.receiver);
            return Err(Miss::Final(TransferError::Refused(Refusal::Incarnation {
                wanted,
                found,
            })));
        }
        let (value, expected) = (
            u64::from(welcome.piece_bytes),
            self.layout.piece_bytes() as u64,
        );
        if value != expected {
            return Err(Miss::Final(TransferError::Grant {
                what: "piece bytes",
                value,
                expected,
            }));
        }
        Ok(())
    }
}

fn miss(refusal: Refusal) -> Miss {
    if refusal.only_this_transport() {
        return Miss::Endpoint(refusal.to_string());
    }
    Miss::Final(match refusal {
        Refusal::Fingerprint(fields) => TransferError::Incompatible { fields },
        other => TransferError::Refused(other),
    })
}

/// Every granted page must lie in the receiver's pool, and the pool in addressable memory.
fn check_slots(grant: &Grant, layout: &KvLayout) -> Result<(), Miss> {
    let region = u64::from(layout.pages).checked_mul(layout.page_bytes() as u64);
    if region.is_none_or(|bytes| bytes > isize::MAX as u64) {
        let (what, expected) = (
            "pages of the pool",
            isize::MAX as u64 / layout.page_bytes() as u64,
        );
        let value = u64::from(layout.pages);
        return Err(Miss::Final(TransferError::Grant {
            what,
            value,
            expected,
        }));
    }
    match grant.slots.iter().find(|slot| slot.page >= layout.pages) {
        Some(slot) => Err(Miss::Final(TransferError::Grant {
            what: "page slot",
            value: u64::from(slot.page),
            expected: u64::from(layout.pages),
        })),
        None => Ok(()),
    }
}
