//! What went wrong with TLS, in words that say what to do. It must not know configuration.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Puts an error of a handshake into words.
pub(super) fn explain_handshake(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ (io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe) => io::Error::new(
            kind,
            "the peer closed the connection in the TLS handshake; it may not speak TLS",
        ),
        _ => explain(error),
    }
}

/// Puts an error of a TLS stream into words.
fn explain(error: io::Error) -> io::Error {
    let kind = error.kind();
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    let words = match inner {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "the peer's certificate is not signed by a CA that is trusted here (UnknownIssuer)"
                .to_owned()
        }
        Some(Error::InvalidCertificate(wrong)) => format!("the peer's certificate: {wrong}"),
        Some(Error::NoCertificatesPresented) => "the peer shows no certificate".to_owned(),
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "the peer does not speak TLS".to_owned()
        }
        Some(Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError),
        )) => format!("the peer refuses this side's certificate ({alert:?})"),
        Some(other) => format!("TLS: {other}"),
        None => return error,
    };
    io::Error::new(kind, words)
}

/// A TLS stream whose later errors are explained too: under TLS 1.3 a client learns only after its
/// handshake that its certificate was refused.
pub(super) struct Explained<S>(pub(super) S);

impl<S: AsyncRead + Unpin> AsyncRead for Explained<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.0).poll_read(context, buffer);
        read.map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                // The other process died or hung up; that is no matter of TLS.
                return io::Error::new(error.kind(), "the peer closed the connection");
            }
            explain(error)
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Explained<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
