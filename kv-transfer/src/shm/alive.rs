//! Whether somebody still listens on a Unix socket. It must not know what for.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Whether a socket is there, but nobody listens. A datagram socket asks: a listener refuses it for its type,
/// without hearing of it and without a wait, and only a socket without a process refuses the connection.
pub(crate) fn is_dead(path: &Path) -> bool {
    failure(path) == Some(ErrorKind::ConnectionRefused)
}

/// Whether nobody listens any more: the socket is dead, or gone.
pub(crate) fn has_ended(path: &Path) -> bool {
    matches!(
        failure(path),
        Some(ErrorKind::ConnectionRefused | ErrorKind::NotFound)
    )
}

fn failure(path: &Path) -> Option<ErrorKind> {
    let asked = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    asked.err().map(|error| error.kind())
}
