//! A client of HTTP/1.1 that does no more than tests need, and can do wrong what others cannot.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::harness::{Harness, soon};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXT: &str = "/v1/completions";

/// An answer, as far as it has been read.
pub(crate) struct Web {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    stream: BufReader<TcpStream>,
    /// Of the body, what came behind the last event that was taken.
    unread: String,
}

impl Web {
    /// Sends these bytes and reads the head of an answer.
    pub(crate) async fn raw(address: &str, request: &[u8]) -> Self {
        soon("an HTTP answer", async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // It may be refused before it has been read.
            let _ = stream.write_all(request).await;
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
            let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
            let mut headers = BTreeMap::new();
            loop {
                line.clear();
                stream.read_line(&mut line).await.unwrap();
                let Some((name, value)) = line.trim_end().split_once(": ") else {
                    break;
                };
                headers.insert(name.to_ascii_lowercase(), value.to_owned());
            }
            Self {
                status,
                headers,
                stream,
                unread: String::new(),
            }
        })
        .await
    }

    /// Posts a body with more lines of a head.
    pub(crate) async fn post(address: &str, path: &str, head: &str, body: &[u8]) -> Self {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n{head}\r\n"
        );
        Self::raw(address, &[head.as_bytes(), body].concat()).await
    }

    /// Posts JSON.
    pub(crate) async fn json(harness: &Harness, path: &str, body: &Value) -> Self {
        let body = body.to_string();
        Self::post(&harness.http, path, JSON, body.as_bytes()).await
    }

    /// Gets a path.
    pub(crate) async fn get(harness: &Harness, path: &str) -> Self {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        Self::raw(&harness.http, request.as_bytes()).await
    }

    /// The whole body, whose status must be this.
    pub(crate) async fn expect(self, status: u16) -> String {
        let (got, body) = (self.status, self.body().await);
        assert_eq!(got, status, "{body}");
        body
    }

    /// The whole body.
    pub(crate) async fn body(mut self) -> String {
        let mut body = std::mem::take(&mut self.unread).into_bytes();
        while let Some(chunk) = self.chunk().await {
            body.extend(chunk);
        }
        String::from_utf8(body).unwrap()
    }

    /// Bytes that came together; none at the end.
    async fn chunk(&mut self) -> Option<Vec<u8>> {
        soon("a part of the body", async {
            if self.headers.contains_key("transfer-encoding") {
                let mut line = String::new();
                self.stream.read_line(&mut line).await.unwrap();
                let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
                let mut bytes = vec![0; size + 2];
                self.stream.read_exact(&mut bytes).await.unwrap();
                bytes.truncate(size);
                return (size > 0).then_some(bytes);
            }
            let mut bytes = vec![0; 64 << 10];
            let count = self.stream.read(&mut bytes).await.unwrap();
            bytes.truncate(count);
            (count > 0).then_some(bytes)
        })
        .await
    }

    /// The whole body, which is JSON.
    pub(crate) async fn value(self) -> Value {
        let body = self.body().await;
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// What an error says, with its status.
    pub(crate) async fn error(self, status: u16) -> Value {
        let (got, value) = (self.status, self.value().await);
        assert_eq!(got, status, "{value}");
        value["error"].clone()
    }

    /// All server-sent events; those that are JSON, and whether `[DONE]` was the last.
    pub(crate) async fn events(self) -> (Vec<Value>, bool) {
        let body = self.body().await;
        let mut events: Vec<&str> = body.split("\n\n").collect();
        assert_eq!(events.pop(), Some(""), "cut off: {body}");
        let done = events.last() == Some(&"data: [DONE]");
        if done {
            events.pop();
        }
        let value = |event: &&str| {
            let data = event.strip_prefix("data: ").unwrap();
            serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
        };
        (events.iter().map(value).collect(), done)
    }

    /// The next event of a stream, which is no end and no `[DONE]`.
    pub(crate) async fn event(&mut self) -> Value {
        loop {
            if let Some(end) = self.unread.find("\n\n") {
                let event: String = self.unread.drain(..end + 2).collect();
                let data = event.strip_prefix("data: ").unwrap();
                return serde_json::from_str(data).unwrap();
            }
            let chunk = self.chunk().await.expect("more events");
            self.unread.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Reads until the body has brought so many events.
    pub(crate) async fn some_events(&mut self, count: usize) {
        let mut seen = 0;
        while seen < count {
            let chunk = self.chunk().await.expect("more events");
            seen += String::from_utf8_lossy(&chunk).matches("data: ").count();
        }
    }

    /// The connection, to be treated badly.
    pub(crate) fn connection(self) -> TcpStream {
        self.stream.into_inner()
    }
}

/// Posts JSON, waits for something and goes away with a reset, without a look at the answer.
pub(crate) async fn leave(
    harness: &Harness,
    path: &str,
    body: &Value,
    when: impl Future<Output = ()>,
) {
    let body = body.to_string();
    let length = body.len();
    let request =
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{JSON}\r\n{body}");
    let mut connection = TcpStream::connect(&harness.http).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    when.await;
    connection.set_zero_linger().unwrap();
}

/// The head of a body of JSON.
pub(crate) const JSON: &str = "Content-Type: application/json\r\n";
