//! The first words of a connection: TLS where it is asked for, then HTTP/2. It must not know limits.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::incoming::PeerInfo;
use crate::replay::{Replay, part};
use crate::stream::{Accepted, BoxStream};
use crate::tls::{Plane, Shown, Strangers, Tls};

/// First bytes of every HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What those hear who speak HTTP/2 where TLS is spoken: empty SETTINGS, then GOAWAY (stream 0, code
/// `INADEQUATE_SECURITY`) with words.
const TLS_ONLY: &[u8] = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\
    \x00\x00\x1c\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0cthis port speaks TLS";

/// A connection that speaks HTTP/2.
pub(crate) struct Speaker {
    pub(crate) stream: Replay,
    pub(crate) peer: PeerInfo,
}

/// Why a connection comes to nothing.
pub(crate) enum Unheard {
    /// Whoever it was said nothing that is worth a word.
    Quiet,
    /// Somebody tried, and should be helped.
    Refused(String),
}

/// Hears the first words. The caller limits the time.
pub(crate) async fn hear(
    accepted: Accepted,
    tls: Option<(Tls, Strangers)>,
) -> Result<Speaker, Unheard> {
    let Accepted {
        mut stream,
        address,
    } = accepted;
    let mut shown = Shown::default();
    if let Some((tls, strangers)) = tls {
        let (secured, who) = open(stream, &tls, strangers, address).await?;
        (stream, shown) = (secured, who);
    }
    let mut seen = [0; PREFACE.len()];
    let mut count = 0;
    while count < PREFACE.len() {
        match stream.read(&mut seen[count..]).await {
            Ok(read) if read > 0 && PREFACE[count..].starts_with(&seen[count..count + read]) => {
                count += read;
            }
            _ => return Err(Unheard::Quiet),
        }
    }
    Ok(Speaker {
        stream: Replay::new(PREFACE, stream),
        peer: PeerInfo { address, shown },
    })
}

/// Opens TLS, or tells a client that does not speak it.
async fn open(
    mut stream: BoxStream,
    tls: &Tls,
    strangers: Strangers,
    address: Option<SocketAddr>,
) -> Result<(BoxStream, Shown), Unheard> {
    let refused = |why: String| {
        let from = address.map_or_else(String::new, |address| format!("{address}: "));
        Unheard::Refused(format!("{from}{why}"))
    };
    let mut first = [0; 1];
    if stream.read_exact(&mut first).await.is_err() {
        return Err(Unheard::Quiet);
    }
    if first[0] == PREFACE[0] {
        // Whether it hears this or not, it is not served.
        let _ = stream.write_all(TLS_ONLY).await;
        part(stream).await;
        return Err(refused("does not speak TLS".to_owned()));
    }
    let stream = Replay::new(&first, stream);
    let opened = tls.accept(Plane::Calls, strangers, stream).await;
    opened.map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_is_two_whole_frames() {
        let length = |at: usize| {
            let bytes = &TLS_ONLY[at..at + 3];
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let second = 9 + length(0);
        assert_eq!(second + 9 + length(second), TLS_ONLY.len());
        assert_eq!((TLS_ONLY[3], TLS_ONLY[second + 3]), (4, 7));
    }
}
