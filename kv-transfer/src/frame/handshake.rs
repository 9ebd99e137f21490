//! Bodies of the handshake: Hello, Welcome, Refused. Whether a Hello is accepted is not decided here.

use baton_proto::domain::Fingerprint;
use baton_proto::ids::{Incarnation, TransferSecret};
use baton_proto::limits::{MAX_CANONICAL_BYTES, MAX_NAME_BYTES};

use super::wire::{Reader, Writer};
use super::{AttemptKey, FrameError};
use crate::error::{CloseReason, Refusal};

const MAX_FIELDS: usize = 32;
const MAX_FIELD_BYTES: usize = 64;
/// Its texts at their longest, and half a KiB for the rest.
pub(super) const MAX_HELLO_BYTES: usize = 2 * MAX_NAME_BYTES + 3 * MAX_CANONICAL_BYTES + 512;
pub(super) const MAX_REFUSED_BYTES: usize = 1 + 4 + MAX_FIELDS * (4 + MAX_FIELD_BYTES);

/// The sender's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The attempt it holds a grant for.
    pub key: AttemptKey,
    /// Proof of the grant.
    pub secret: TransferSecret,
    /// The sender's process start.
    pub sender: Incarnation,
    /// The process start that made the grant.
    pub receiver: Incarnation,
    /// The sender's host; shm needs it to be the receiver's.
    pub host_id: String,
    /// shm: the sender has no mapping of the receiver's pool yet.
    pub wants_memory: bool,
    /// blake3 over the reused pages and slots of the sender's grant.
    pub slots_digest: [u8; 32],
    /// The sender's compatibility identity.
    pub fingerprint: Fingerprint,
}

/// The receiver's yes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The receiver's process start.
    pub receiver: Incarnation,
    /// Bytes that one sender (all its attempts together) may have in flight.
    pub credit_bytes: u64,
    /// Pages in the receiver's pool: places of pieces in its region follow from it.
    pub pool_pages: u32,
    /// Bytes of one piece.
    pub piece_bytes: u32,
    /// shm: the descriptor of the pool comes with this frame.
    pub memory_attached: bool,
}

impl Hello {
    pub(super) fn encode(&self, out: &mut Writer) {
        self.key.encode(out);
        out.bytes(&self.secret.0);
        out.u64(self.sender.0);
        out.u64(self.receiver.0);
        out.u8(u8::from(self.wants_memory));
        out.bytes(&self.slots_digest);
        out.text(&self.host_id, MAX_NAME_BYTES);
        encode_fingerprint(&self.fingerprint, out);
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            key: AttemptKey::decode(reader)?,
            secret: TransferSecret(reader.array()?),
            sender: Incarnation(reader.u64()?),
            receiver: Incarnation(reader.u64()?),
            wants_memory: decode_flag(reader, "wants_memory")?,
            slots_digest: reader.array()?,
            host_id: reader.text("host id", MAX_NAME_BYTES)?,
            fingerprint: decode_fingerprint(reader)?,
        })
    }
}

/// Decodes the body of a Hello frame alone.
///
/// # Errors
/// Anything but exactly one Hello body.
pub fn decode_hello(body: &[u8]) -> Result<Hello, FrameError> {
    if body.len() > MAX_HELLO_BYTES {
        return Err(FrameError::TooLong {
            kind: "Hello",
            bytes: body.len(),
            limit: MAX_HELLO_BYTES,
        });
    }
    let mut reader = Reader::new(body);
    let hello = Hello::decode(&mut reader)?;
    reader.end()?;
    Ok(hello)
}

impl Welcome {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.u64(self.receiver.0);
        out.u64(self.credit_bytes);
        out.u32(self.pool_pages);
        out.u32(self.piece_bytes);
        out.u8(u8::from(self.memory_attached));
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            receiver: Incarnation(reader.u64()?),
            credit_bytes: reader.u64()?,
            pool_pages: reader.u32()?,
            piece_bytes: reader.u32()?,
            memory_attached: decode_flag(reader, "memory_attached")?,
        })
    }
}

fn decode_flag(reader: &mut Reader<'_>, what: &'static str) -> Result<bool, FrameError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(FrameError::Value {
            what,
            value: u64::from(value),
            limit: 1,
        }),
    }
}

fn encode_fingerprint(fingerprint: &Fingerprint, out: &mut Writer) {
    out.u32(fingerprint.protocol_version);
    out.bytes(&fingerprint.weights_digest);
    out.bytes(&fingerprint.metadata_digest);
    out.bytes(&fingerprint.tokenizer_digest);
    for value in [
        fingerprint.page_size,
        fingerprint.layers,
        fingerprint.kv_heads,
        fingerprint.head_dim,
    ] {
        out.u32(value);
    }
    out.text(&fingerprint.kv_dtype, MAX_NAME_BYTES);
    for text in [
        &fingerprint.layout,
        &fingerprint.rope,
        &fingerprint.numerics,
    ] {
        out.text(text, MAX_CANONICAL_BYTES);
    }
}

fn decode_fingerprint(reader: &mut Reader<'_>) -> Result<Fingerprint, FrameError> {
    let protocol_version = reader.u32()?;
    let (weights_digest, metadata_digest, tokenizer_digest) =
        (reader.array()?, reader.array()?, reader.array()?);
    let (page_size, layers, kv_heads, head_dim) =
        (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
    Ok(Fingerprint {
        protocol_version,
        weights_digest,
        metadata_digest,
        tokenizer_digest,
        page_size,
        layers,
        kv_heads,
        head_dim,
        kv_dtype: reader.text("kv_dtype", MAX_NAME_BYTES)?,
        layout: reader.text("layout", MAX_CANONICAL_BYTES)?,
        rope: reader.text("rope", MAX_CANONICAL_BYTES)?,
        numerics: reader.text("numerics", MAX_CANONICAL_BYTES)?,
    })
}

pub(super) fn encode_refusal(refusal: &Refusal, out: &mut Writer) {
    match refusal {
        Refusal::Incarnation { wanted, found } => {
            out.u8(1);
            out.u64(wanted.0);
            out.u64(found.0);
        }
        Refusal::Fingerprint(fields) => {
            out.u8(2);
            let fields = &fields[..fields.len().min(MAX_FIELDS)];
            out.u32(fields.len() as u32);
            for field in fields {
                out.text(field, MAX_FIELD_BYTES);
            }
        }
        Refusal::Unknown => out.u8(3),
        Refusal::Closed(reason) => {
            out.u8(4);
            out.u8(*reason as u8);
        }
        Refusal::Attempt { wanted, found } => {
            out.u8(5);
            out.u32(*wanted);
            out.u32(*found);
        }
        Refusal::Secret => out.u8(6),
        Refusal::AlreadyUsed => out.u8(7),
        Refusal::OtherUser => out.u8(8),
        Refusal::OtherHost => out.u8(9),
        Refusal::Quarantine { pages, cap } => {
            out.u8(10);
            out.u32(*pages);
            out.u32(*cap);
        }
        Refusal::Malformed => out.u8(11),
        Refusal::Slots => out.u8(12),
    }
}

pub(super) fn decode_refusal(reader: &mut Reader<'_>) -> Result<Refusal, FrameError> {
    Ok(match reader.u8()? {
        1 => Refusal::Incarnation {
            wanted: Incarnation(reader.u64()?),
            found: Incarnation(reader.u64()?),
        },
        2 => {
            let count = reader.u32()? as usize;
            if count > MAX_FIELDS {
                return Err(FrameError::Value {
                    what: "differing fields",
                    value: count as u64,
                    limit: MAX_FIELDS as u64,
                });
            }
            let fields = (0..count).map(|_| reader.text("field name", MAX_FIELD_BYTES));
            Refusal::Fingerprint(fields.collect::<Result<_, _>>()?)
        }
        3 => Refusal::Unknown,
        4 => Refusal::Closed(decode_close_reason(reader)?),
        5 => Refusal::Attempt {
            wanted: reader.u32()?,
            found: reader.u32()?,
        },
        6 => Refusal::Secret,
        7 => Refusal::AlreadyUsed,
        8 => Refusal::OtherUser,
        9 => Refusal::OtherHost,
        10 => Refusal::Quarantine {
            pages: reader.u32()?,
            cap: reader.u32()?,
        },
        11 => Refusal::Malformed,
        12 => Refusal::Slots,
        value => {
            return Err(FrameError::Value {
                what: "refusal",
                value: u64::from(value),
                limit: 12,
            });
        }
    })
}

pub(super) fn decode_close_reason(reader: &mut Reader<'_>) -> Result<CloseReason, FrameError> {
    let code = reader.u8()?;
    CloseReason::from_code(code).ok_or(FrameError::Value {
        what: "close reason",
        value: u64::from(code),
        limit: 10,
    })
}
