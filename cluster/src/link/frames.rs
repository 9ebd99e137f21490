//! Messages as gRPC frames them: a byte that says whether it is compressed, its length, itself. It must not know
//! where bytes come from.

use baton_proto::v1::PrefillResponse;
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

/// How many messages of a prefill worker are in these bytes, which arrive in pieces of at most this size: the
/// entry for whoever throws arbitrary bytes at it.
///
/// # Errors
/// Why a message is refused, after the ones before it.
pub fn framed_messages(bytes: &[u8], piece: usize) -> Result<usize, (usize, Status)> {
    let mut frames = Frames::default();
    let mut count = 0;
    for piece in bytes.chunks(piece.max(1)) {
        frames.add(Bytes::copy_from_slice(piece));
        loop {
            match frames.next::<PrefillResponse>() {
                Ok(Some(_)) => count += 1,
                Ok(None) => break,
                Err(refused) => return Err((count, refused)),
            }
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::DrainRequest;
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};

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

    #[test]
    fn spoiled_frames_are_refused_or_read_the_same_however_they_are_cut() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..random.random_range(1..4) {
                // What this is a message of does not matter: its fields are others.
                let length = random.random_range(0..40);
                bytes.extend_from_slice(&frame(&message(length)));
            }
            for _ in 0..random.random_range(0..3) {
                let at = random.random_range(0..bytes.len());
                match random.random_range(0..4) {
                    0 => bytes[at] = random.random(),
                    1 => bytes.truncate(at.max(1)),
                    2 => bytes.splice(at..at, [0xff; 3]).for_each(drop),
                    // Heads stand at the beginnings.
                    _ => bytes[at.min(HEAD_BYTES - 1)] = random.random_range(0..8),
                }
            }
            let told = |piece| {
                let told = framed_messages(&bytes, piece);
                told.map_err(|(before, status)| {
                    (before, status.code(), status.message().to_owned())
                })
            };
            let whole = told(bytes.len());
            assert_eq!(told(1), whole);
            assert_eq!(told(random.random_range(1..9)), whole);
            *(if whole.is_ok() {
                &mut read
            } else {
                &mut refused
            }) += 1;
        }
        assert!(read > 1000 && refused > 1000, "{read} read, {refused} not");
    }
}
