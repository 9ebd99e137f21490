//! Frames of the data plane: one header, one body, every length checked before memory is taken.
//!
//! ```text
//! body length u32 | version u8 | kind u8 | zero u16 | body
//! ```
//!
//! All integers are little-endian. Only the body of a Pages frame may be followed by payload (part of
//! the body length): the bytes of its pieces. Frames of an attempt begin with its transfer id and
//! attempt. This module must not know sockets, memory or what a frame means to an attempt.

mod error;
mod handshake;
mod manifest;
mod pages;
mod wire;

use baton_proto::ids::{Attempt, TransferId};

pub use error::FrameError;
pub use handshake::{Hello, Welcome, decode_hello};
pub use manifest::{Commit, Manifest};
pub use pages::{PageMark, PagesHead};
use wire::{Reader, Writer};

use crate::error::{CloseReason, Refusal};

/// Version of header and bodies.
pub const FRAME_VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;
/// Most payload bytes of one Pages frame.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// Most pages in one Pages frame.
pub const MAX_RUN_PAGES: usize = 1024;
/// Longest payload of a Commit frame.
pub const MAX_COMMIT_PAYLOAD_BYTES: usize = 256 << 10;
/// Longest body of any frame.
pub const MAX_BODY_BYTES: usize = MAX_PAYLOAD_BYTES + pages::MAX_HEAD_BYTES;

const MAX_CONTROL_BYTES: usize = 64;
const COMMIT_FIXED_BYTES: usize = KEY_BYTES + 8 + 8 + 32 + 4;
const KEY_BYTES: usize = 20;

/// One attempt of one transfer, as every frame after the handshake names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptKey {
    /// The transfer.
    pub transfer_id: TransferId,
    /// The attempt.
    pub attempt: Attempt,
}

/// One frame, without the payload of Pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Sender: who I am and which attempt I want.
    Hello(Box<Hello>),
    /// Receiver: go on.
    Welcome(Welcome),
    /// Receiver: no.
    Refused(Refusal),
    /// Sender: the manifest.
    Open(AttemptKey, Manifest),
    /// Sender: pieces of adjacent pages of one layer.
    Pages(PagesHead),
    /// Sender: still computing. Receiver: heard.
    KeepAlive(AttemptKey),
    /// Receiver: so many payload bytes are in their pages.
    Credit(AttemptKey, u64),
    /// Sender: everything is sent; nothing is written after this.
    Commit(AttemptKey, Commit),
    /// Receiver: verified and committed.
    CommitAck(AttemptKey),
    /// Sender: give up; nothing is written after this.
    Revoke(AttemptKey),
    /// The one who was told to stop: nothing is written any more.
    RevokeAck(AttemptKey),
    /// Receiver: the attempt is closed.
    Closed(AttemptKey, CloseReason),
}

/// A decoded frame and how many bytes it took; `payload_bytes` of pieces follow them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The frame.
    pub frame: Frame,
    /// Bytes of header and body, without payload.
    pub consumed: usize,
    /// Payload that follows (only Pages).
    pub payload_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Hello = 1,
    Welcome = 2,
    Refused = 3,
    Open = 4,
    Pages = 5,
    KeepAlive = 6,
    Credit = 7,
    Commit = 8,
    CommitAck = 9,
    Revoke = 10,
    RevokeAck = 11,
    Closed = 12,
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::Hello,
        Self::Welcome,
        Self::Refused,
        Self::Open,
        Self::Pages,
        Self::KeepAlive,
        Self::Credit,
        Self::Commit,
        Self::CommitAck,
        Self::Revoke,
        Self::RevokeAck,
        Self::Closed,
    ];

    const fn limit(self) -> usize {
        match self {
            Self::Hello => handshake::MAX_HELLO_BYTES,
            Self::Refused => handshake::MAX_REFUSED_BYTES,
            Self::Pages => MAX_BODY_BYTES,
            Self::Commit => COMMIT_FIXED_BYTES + MAX_COMMIT_PAYLOAD_BYTES,
            _ => MAX_CONTROL_BYTES,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Hello => "Hello",
            Self::Welcome => "Welcome",
            Self::Refused => "Refused",
            Self::Open => "Open",
            Self::Pages => "Pages",
            Self::KeepAlive => "KeepAlive",
            Self::Credit => "Credit",
            Self::Commit => "Commit",
            Self::CommitAck => "CommitAck",
            Self::Revoke => "Revoke",
            Self::RevokeAck => "RevokeAck",
            Self::Closed => "Closed",
        }
    }
}

impl Frame {
    const fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Welcome(_) => Kind::Welcome,
            Self::Refused(_) => Kind::Refused,
            Self::Open(..) => Kind::Open,
            Self::Pages(_) => Kind::Pages,
            Self::KeepAlive(_) => Kind::KeepAlive,
            Self::Credit(..) => Kind::Credit,
            Self::Commit(..) => Kind::Commit,
            Self::CommitAck(_) => Kind::CommitAck,
            Self::Revoke(_) => Kind::Revoke,
            Self::RevokeAck(_) => Kind::RevokeAck,
            Self::Closed(..) => Kind::Closed,
        }
    }

    /// Name of the kind, for messages.
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Header and body; the body length counts `payload_bytes` that the caller sends right after.
    pub(crate) fn encode(&self, payload_bytes: usize) -> Vec<u8> {
        let mut out = Writer::new();
        out.bytes(&[0; HEADER_BYTES]);
        match self {
            Self::Hello(hello) => hello.encode(&mut out),
            Self::Welcome(welcome) => welcome.encode(&mut out),
            Self::Refused(refusal) => handshake::encode_refusal(refusal, &mut out),
            Self::Open(key, manifest) => {
                key.encode(&mut out);
                manifest.encode(&mut out);
            }
            Self::Pages(head) => head.encode(&mut out),
            Self::KeepAlive(key)
            | Self::CommitAck(key)
            | Self::Revoke(key)
            | Self::RevokeAck(key) => {
                key.encode(&mut out);
            }
            Self::Credit(key, bytes) => {
                key.encode(&mut out);
                out.u64(*bytes);
            }
            Self::Commit(key, commit) => {
                key.encode(&mut out);
                commit.encode(&mut out);
            }
            Self::Closed(key, reason) => {
                key.encode(&mut out);
                out.u8(*reason as u8);
            }
        }
        let mut bytes = out.finish();
        let body = (bytes.len() - HEADER_BYTES + payload_bytes) as u32;
        bytes[..4].copy_from_slice(&body.to_le_bytes());
        bytes[4] = FRAME_VERSION;
        bytes[5] = self.kind() as u8;
        bytes
    }
}

/// Decodes the frame at the front of `bytes`; `None` when more bytes are needed. Limits are checked
/// on the header alone, so that a caller that buffers until `Some` buffers a bounded amount.
///
/// # Errors
/// Bytes that can never become a frame.
pub fn decode_frame(bytes: &[u8]) -> Result<Option<Decoded>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let (kind, body_bytes) = decode_header(*header)?;
    if kind == Kind::Pages {
        return pages::decode_head(rest, body_bytes);
    }
    let Some(body) = rest.get(..body_bytes) else {
        return Ok(None);
    };
    let mut reader = Reader::new(body);
    let frame = decode_body(kind, &mut reader)?;
    reader.end()?;
    Ok(Some(Decoded {
        frame,
        consumed: HEADER_BYTES + body_bytes,
        payload_bytes: 0,
    }))
}

fn decode_header(header: [u8; HEADER_BYTES]) -> Result<(Kind, usize), FrameError> {
    let [b0, b1, b2, b3, version, code, r0, r1] = header;
    if version != FRAME_VERSION {
        return Err(FrameError::Version { found: version });
    }
    let reserved = u16::from_le_bytes([r0, r1]);
    if reserved != 0 {
        return Err(FrameError::Reserved(reserved));
    }
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| *kind as u8 == code)
        .ok_or(FrameError::Kind(code))?;
    let bytes = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
    if bytes > kind.limit() {
        return Err(FrameError::TooLong {
            kind: kind.name(),
            bytes,
            limit: kind.limit(),
        });
    }
    Ok((kind, bytes))
}

fn decode_body(kind: Kind, reader: &mut Reader<'_>) -> Result<Frame, FrameError> {
    match kind {
        Kind::Hello => return Ok(Frame::Hello(Box::new(Hello::decode(reader)?))),
        Kind::Welcome => return Ok(Frame::Welcome(Welcome::decode(reader)?)),
        Kind::Refused => return Ok(Frame::Refused(handshake::decode_refusal(reader)?)),
        _ => {}
    }
    let key = AttemptKey::decode(reader)?;
    Ok(match kind {
        Kind::Open => Frame::Open(key, Manifest::decode(reader)?),
        Kind::KeepAlive => Frame::KeepAlive(key),
        Kind::Credit => Frame::Credit(key, reader.u64()?),
        Kind::Commit => Frame::Commit(key, Commit::decode(reader)?),
        Kind::CommitAck => Frame::CommitAck(key),
        Kind::Revoke => Frame::Revoke(key),
        Kind::RevokeAck => Frame::RevokeAck(key),
        Kind::Closed => Frame::Closed(key, handshake::decode_close_reason(reader)?),
        Kind::Hello | Kind::Welcome | Kind::Refused | Kind::Pages => {
            return Err(FrameError::Kind(kind as u8));
        }
    })
}

impl AttemptKey {
    fn encode(&self, out: &mut Writer) {
        out.bytes(&self.transfer_id.0);
        out.u32(self.attempt.0);
    }
    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            transfer_id: TransferId(reader.array()?),
            attempt: Attempt(reader.u32()?),
        })
    }
}
