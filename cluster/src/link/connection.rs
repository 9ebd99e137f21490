//! A connection's life: opened with the shared settings, driven by a task of its own, given up when pings are not
//! answered. It must not know calls.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use tonic::Status;

use crate::dialer::Dialer;
use crate::http2::{
    CONNECTION_WINDOW, MAX_HEADER_BYTES, MAX_RESET_STREAMS, MAX_STREAMS, PING_INTERVAL,
    PING_TIMEOUT, STREAM_WINDOW,
};
use crate::stream::BoxStream;

/// Connects; the connection lives until it breaks, or until nobody can call on it any more.
pub(super) async fn open(dialer: &Dialer, address: &str) -> Result<SendRequest<Bytes>, Status> {
    let stream = dialer.dial(address).await.map_err(unreachable)?;
    let (requests, connection) = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_max_send_streams(MAX_STREAMS as usize)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .enable_push(false)
        .handshake(stream)
        .await
        .map_err(failed)?;
    tokio::spawn(drive(connection));
    Ok(requests)
}

async fn drive(mut connection: Connection<BoxStream, Bytes>) {
    let pings = connection.ping_pong();
    let ended = async {
        match pings {
            Some(pings) => unanswered(pings).await,
            None => std::future::pending().await,
        }
    };
    // Dropped either way: calls on it end with an error.
    tokio::select! {
        _ = connection => {}
        () = ended => {}
    }
}

/// Until the peer answers no more.
async fn unanswered(mut pings: PingPong) {
    loop {
        tokio::time::sleep(PING_INTERVAL).await;
        let answered = tokio::time::timeout(PING_TIMEOUT, pings.ping(Ping::opaque()));
        if !matches!(answered.await, Ok(Ok(_))) {
            return;
        }
    }
}

/// The connection, or one call on it, broke.
pub(super) fn failed(error: h2::Error) -> Status {
    Status::from_error(Box::new(error))
}

fn unreachable(error: io::Error) -> Status {
    let mut status = Status::unavailable(error.to_string());
    status.set_source(Arc::new(error));
    status
}
