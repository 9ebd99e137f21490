//! HTTP/2 settings that all processes share.
//!
//! - Keep-alive: a peer that answers no ping for [`PING_TIMEOUT`] has its connection closed, so that
//!   a stopped process is a dropped stream after at most [`PING_INTERVAL`] + [`PING_TIMEOUT`].
//! - Windows: [`MAX_STREAMS`] streams that nobody reads, each holding a full [`STREAM_WINDOW`],
//!   still leave room in the [`CONNECTION_WINDOW`] for the others.
//! - Messages are at most [`MAX_MESSAGE_BYTES`], both ways, on every kind of call. Compression stays
//!   off, so that a message is no larger than it looks.
//!
//! It must not know services.

use std::time::Duration;

use tonic::transport::{Endpoint, Server};

use crate::ClusterError;

/// A ping goes out after this long without a frame.
pub const PING_INTERVAL: Duration = Duration::from_millis(750);
/// A ping must be answered within this.
pub const PING_TIMEOUT: Duration = Duration::from_millis(1250);
/// Bytes of one stream that may be under way unread.
pub const STREAM_WINDOW: u32 = 64 << 10;
/// Bytes of one connection that may be under way unread.
pub const CONNECTION_WINDOW: u32 = 80 << 20;
/// Most concurrent streams of one connection.
pub const MAX_STREAMS: u32 = 1024;
/// Largest message.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
const _: () = assert!(
    MAX_STREAMS as u64 * (STREAM_WINDOW as u64) < CONNECTION_WINDOW as u64,
    "streams that nobody reads would stop the whole connection"
);
/// Largest header block.
pub(crate) const MAX_HEADER_BYTES: u32 = 16 << 10;
/// Streams that a peer may cancel in one burst (a burst of client disconnects) before its connection
/// is taken for an attack.
pub(crate) const MAX_RESET_STREAMS: usize = MAX_STREAMS as usize;

/// A server with the shared settings; services are added by the caller.
pub fn server() -> Server {
    Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(MAX_RESET_STREAMS))
}

/// The client side of the shared settings for `host:port`.
///
/// # Errors
/// The address is not one.
pub fn endpoint(address: &str) -> Result<Endpoint, ClusterError> {
    let refused = || ClusterError::Address {
        address: address.chars().take(64).collect(),
    };
    let port = address
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() {
        return Err(refused());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| refused())?;
    Ok(endpoint
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_max_concurrent_reset_streams(MAX_RESET_STREAMS))
}
