//! Messages that no well-behaved client sends: their frames and headers are written by hand.

use http_body_util::{BodyExt as _, Full};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Bytes, http};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::harness::soon;

/// Flag of a frame whose message is compressed (gRPC over HTTP/2, "Length-Prefixed-Message").
const COMPRESSED: u8 = 1;

/// Calls a method with one compressed message; the status that came back.
pub(crate) async fn call_compressed(
    channel: &Channel,
    method: &str,
    encoding: Option<&str>,
    message: &[u8],
) -> Status {
    let mut frame = vec![COMPRESSED];
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(message);
    let mut request = http::Request::post(method)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    let request = request
        .body(Body::new(Full::new(Bytes::from(frame))))
        .unwrap();
    let mut channel = channel.clone();
    soon(
        "the channel is ready",
        std::future::poll_fn(|context| GrpcService::<Body>::poll_ready(&mut channel, context)),
    )
    .await
    .unwrap();
    let response = soon("a response", GrpcService::call(&mut channel, request))
        .await
        .unwrap();
    if let Some(status) = Status::from_header_map(response.headers()) {
        return status;
    }
    let body = soon("the end", response.into_body().collect())
        .await
        .unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    Status::from_header_map(&trailers).unwrap_or_else(|| Status::new(Code::Unknown, "no status"))
}

/// Bytes that [`bomb`] inflates to.
pub(crate) const INFLATED: usize = 1 + MATCHES * LONGEST_MATCH;
const MATCHES: usize = 2_000_000;
const LONGEST_MATCH: usize = 258;

/// A valid gzip file (RFC 1952) of a few megabytes that inflates to half a gigabyte of zeros: one
/// block of fixed Huffman codes (RFC 1951, section 3.2.6) that repeats its first byte.
pub(crate) fn bomb() -> Vec<u8> {
    let mut bits = Bits::default();
    // The last block, of fixed codes.
    bits.put(1, 1);
    bits.put(0b10, 2);
    // Literal 0.
    bits.put(0b0011_0000, 8);
    for _ in 0..MATCHES {
        // Length 258 (symbol 285), distance 1.
        bits.put(0b1100_0101, 8);
        bits.put(0, 5);
    }
    // End of the block (symbol 256).
    bits.put(0, 7);
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    file.extend(bits.bytes());
    file.extend(crc32_of_zeros(INFLATED).to_le_bytes());
    file.extend((INFLATED as u32).to_le_bytes());
    file
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    last: u8,
    filled: u32,
}

impl Bits {
    /// Appends a code, its highest bit first; bytes fill up from their lowest bit.
    fn put(&mut self, code: u32, length: u32) {
        for at in (0..length).rev() {
            self.last |= ((code >> at & 1) as u8) << self.filled;
            self.filled += 1;
            if self.filled == 8 {
                self.bytes.push(std::mem::take(&mut self.last));
                self.filled = 0;
            }
        }
    }

    fn bytes(mut self) -> Vec<u8> {
        if self.filled > 0 {
            self.bytes.push(self.last);
        }
        self.bytes
    }
}

/// CRC-32 of this many zero bytes: a zero bit is a linear map of the state, squared for each binary
/// digit of their number.
fn crc32_of_zeros(bytes: usize) -> u32 {
    let apply = |map: &[u32; 32], state: u32| {
        let columns = (0..32).filter(|bit| state >> bit & 1 == 1);
        columns.fold(0, |sum, bit| sum ^ map[bit])
    };
    let mut map: [u32; 32] = std::array::from_fn(|bit| match bit {
        0 => 0xedb8_8320,
        _ => 1 << (bit - 1),
    });
    let mut state = u32::MAX;
    let mut left = 8 * bytes as u64;
    while left > 0 {
        if left & 1 == 1 {
            state = apply(&map, state);
        }
        map = map.map(|column| apply(&map, column));
        left >>= 1;
    }
    !state
}
