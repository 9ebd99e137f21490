//! Binds the sockets of a receiver and clears away those that killed processes left. It must not know
//! what is said on them.

use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use super::ReceiverOptions;
use crate::error::TransferError;
use crate::network::Listen;
use crate::shm::{is_dead, is_socket_name, socket_name};

/// Most sockets that one sweep asks.
const MAX_SWEPT: usize = 4096;

pub(super) fn bind_unix(folder: &Path) -> Result<(UnixListener, PathBuf), TransferError> {
    let path = folder.join(socket_name(rand::random()));
    let failed = |error: io::Error| TransferError::Bind {
        address: path.display().to_string(),
        detail: error.to_string(),
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    sweep(folder);
    // It gets the name that others sweep only once it listens.
    let unheard = path.with_extension("bind");
    let listener = UnixListener::bind(&unheard).map_err(failed)?;
    if let Err(error) = std::fs::rename(&unheard, &path) {
        let _ = std::fs::remove_file(&unheard);
        return Err(failed(error));
    }
    Ok((listener, path))
}

/// Removes the sockets of killed receivers. What cannot be looked at or removed stays.
fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let ours = entries
        .flatten()
        .filter(|entry| is_socket_name(&entry.file_name().to_string_lossy()));
    for entry in ours.take(MAX_SWEPT) {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && is_dead(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

pub(super) async fn bind_tcp(
    options: &ReceiverOptions,
) -> Result<(Box<dyn Listen>, String), TransferError> {
    let failed = |error: io::Error| TransferError::Bind {
        address: options.listen.to_string(),
        detail: error.to_string(),
    };
    let listener = options.network.listen(options.listen);
    let listener = listener.await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let address = match &options.advertise {
        Some(host) => advertised(host, bound.port()),
        None => bound.to_string(),
    };
    Ok((listener, address))
}

/// Address under which peers reach the data plane; a port after the host is another service's.
fn advertised(host: &str, port: u16) -> String {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.parse::<Ipv6Addr>().is_ok() {
        return format!("[{bare}]:{port}");
    }
    match host.rsplit_once(':') {
        Some((name, other)) if other.parse::<u16>().is_ok() => format!("{name}:{port}"),
        _ => format!("{host}:{port}"),
    }
}
