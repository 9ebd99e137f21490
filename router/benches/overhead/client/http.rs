//! Calls over HTTP/1.1 on a connection that is kept: as little as a client can do. It must not know what answers.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{TOKENS, Times};
use crate::arguments::Call;

/// Begins every piece of an answer but its end.
const PIECE: &[u8] = b"data: {";
/// Ends a chunked body.
const END: &[u8] = b"\r\n0\r\n\r\n";
/// No answer is longer.
const MAX_ANSWER: usize = 1 << 20;

/// One connection.
pub(super) struct Http {
    connection: TcpStream,
    call: Call,
    head: String,
    model: String,
    buffer: Vec<u8>,
}

impl Http {
    pub(super) async fn new(call: Call, address: &str, model: &str) -> io::Result<Self> {
        let connection = TcpStream::connect(address).await?;
        connection.set_nodelay(true)?;
        let path = match call {
            Call::Chat => "/v1/chat/completions",
            _ => "/v1/completions",
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        );
        Ok(Self {
            connection,
            call,
            head,
            model: model.to_owned(),
            buffer: Vec::with_capacity(16 << 10),
        })
    }

    pub(super) async fn ask(&mut self, prompt: &str) -> io::Result<Times> {
        let (head, model) = (&self.head, &self.model);
        let input = match self.call {
            Call::Chat => format!(r#""messages":[{{"role":"user","content":"{prompt}"}}]"#),
            _ => format!(r#""prompt":"{prompt}""#),
        };
        let streams = !matches!(self.call, Call::Whole);
        let body = format!(
            r#"{{"model":"{model}",{input},"max_tokens":{TOKENS},"temperature":0,"ignore_eos":true,"stream":{streams}}}"#
        );
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let asked = Instant::now();
        self.connection.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        let mut times = Times::default();
        let mut pieces = 0;
        loop {
            let known = self.buffer.len();
            if self.connection.read_buf(&mut self.buffer).await? == 0 {
                return Err(self.wrong("the connection was closed"));
            }
            let now = asked.elapsed();
            let unseen = &self.buffer[known.saturating_sub(PIECE.len() - 1)..];
            let found = unseen
                .windows(PIECE.len())
                .filter(|window| *window == PIECE);
            note(&mut times, &mut pieces, found.count(), now);
            if self.is_complete()? {
                times.end = now;
                break;
            }
            if self.buffer.len() > MAX_ANSWER {
                return Err(self.wrong("the answer does not end"));
            }
        }
        if !self.buffer.starts_with(b"HTTP/1.1 200") || (streams && pieces < TOKENS as usize) {
            return Err(self.wrong("not the answer that was asked for"));
        }
        Ok(times)
    }

    /// Whether the whole answer is there.
    fn is_complete(&self) -> io::Result<bool> {
        if self.buffer.ends_with(END) {
            return Ok(true);
        }
        let Some(head) = self
            .buffer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
        else {
            return Ok(false);
        };
        let lines = String::from_utf8_lossy(&self.buffer[..head]).to_ascii_lowercase();
        let length = lines
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"));
        let Some(length) = length else {
            return Ok(false);
        };
        let length: usize = length.trim().parse().map_err(|_| self.wrong("no length"))?;
        Ok(self.buffer.len() >= head + 4 + length)
    }

    fn wrong(&self, what: &str) -> io::Error {
        let answer = String::from_utf8_lossy(&self.buffer);
        io::Error::other(format!("{what}: {answer:.2000}"))
    }
}

/// Counts pieces that have come.
fn note(times: &mut Times, pieces: &mut usize, more: usize, now: Duration) {
    if more > 0 && *pieces == 0 {
        times.first = now;
    }
    let before = *pieces;
    *pieces += more;
    if before < TOKENS as usize && *pieces >= TOKENS as usize {
        times.last = now;
    }
}
