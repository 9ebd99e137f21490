//! Messages as gRPC frames them: a byte that says whether it is compressed, its length, itself. It must not know
//! where bytes come from.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message;
use tonic::Status;

use crate::http2::MAX_MESSAGE_BYTES;

/// Before each message.
const HEAD_BYTES: usize = 5;

/// A message in its frame.
pub(super) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEAD_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut frame);
    frame.freeze()
}

/// What has arrived and was not taken yet: less than a message and one piece of the connection's.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Bytes,
}

impl Frames {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes what arrived.
    pub(super) fn add(&mut self, bytes: Bytes) {
        if self.bytes.is_empty() {
            self.bytes = bytes;
            return;
        }
        let begun = std::mem::take(&mut self.bytes);
        let mut whole = begun
            .try_into_mut()
            .unwrap_or_else(|begun| BytesMut::from(&*begun));
        whole.extend_from_slice(&bytes);
        self.bytes = whole.freeze();
    }

    /// The next message, if all of it is there.
    pub(super) fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Status> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let [compressed, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            return Err(Status::internal(
                "a compressed message, which was not asked for",
            ));
        }
        if length > MAX_MESSAGE_BYTES {
            return Err(Status::out_of_range(format!(
                "a message of {length} bytes, the limit is {MAX_MESSAGE_BYTES}"
            )));
        }
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        let message = M::decode(message)
            .map_err(|error| Status::internal(format!("a message that cannot be read: {error}")))?;
        self.bytes.advance(HEAD_BYTES + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::DrainRequest;

    use super::*;

    fn message(length: usize) -> DrainRequest {
        DrainRequest {
            worker_id: "w".repeat(length),
        }
    }

    #[test]
    fn messages_come_out_as_they_went_in_however_they_are_cut() {
        let sent: Vec<_> = [0, 1, 5, 300, 20_000].map(message).to_vec();
        let bytes: Vec<u8> = sent
            .iter()
            .flat_map(|message| frame(message).to_vec())
            .collect();
        for size in [1, 2, 7, 1000, bytes.len()] {
            let mut frames = Frames::default();
            let mut received: Vec<DrainRequest> = Vec::new();
            for piece in bytes.chunks(size) {
                frames.add(Bytes::copy_from_slice(piece));
                while let Some(message) = frames.next().unwrap() {
                    received.push(message);
                }
            }
            assert_eq!(received, sent, "in pieces of {size}");
            assert!(frames.is_empty());
        }
    }

    #[test]
    fn what_is_not_a_message_is_refused_before_it_is_kept() {
        let refused = |bytes: &[u8]| {
            let mut frames = Frames::default();
            frames.add(Bytes::copy_from_slice(bytes));
            frames.next::<DrainRequest>().unwrap_err()
        };
        let long = refused(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(long.code(), tonic::Code::OutOfRange);
        assert!(long.message().contains("4294967295"), "{long}");
        assert_eq!(refused(&[1, 0, 0, 0, 0]).code(), tonic::Code::Internal);
        assert_eq!(
            refused(&[0, 0, 0, 0, 1, 0xff]).code(),
            tonic::Code::Internal
        );
    }
}
