//! Where connections to a process arrive. It must not know how they are made.

use std::net::SocketAddr;

use tokio::sync::mpsc;

use super::{Net, Network, ProcessId, Stream};

/// Where connections to a process arrive.
pub struct Listener {
    pub(super) network: Network,
    pub(super) owner: ProcessId,
    pub(super) address: SocketAddr,
    pub(super) arrivals: mpsc::UnboundedReceiver<Stream>,
}

impl Listener {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection; never, once the process has been killed. Cancel-safe.
    pub async fn accept(&mut self) -> Stream {
        loop {
            let owner = self.owner;
            let runs = |net: &Net| !net.is_frozen(owner) && !net.is_dead(owner);
            self.network.until(runs).await;
            let changed = self.network.changed.notified();
            tokio::select! {
                biased;
                () = changed => {}
                stream = self.arrivals.recv() => match stream {
                    Some(stream) => return stream,
                    None => std::future::pending().await,
                },
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.network.with(|net| {
            if net
                .listeners
                .get(&self.address)
                .is_some_and(|(owner, _)| *owner == self.owner)
            {
                net.listeners.remove(&self.address);
            }
        });
    }
}
