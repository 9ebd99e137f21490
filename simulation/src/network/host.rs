//! A process's own view of the network. It must not know what is said.

use std::io;
use std::net::SocketAddr;

use tokio::sync::mpsc;

use super::{Listener, Machine, Net, Network, ProcessId, Stream};

/// A process's own view of the network.
#[derive(Clone)]
pub struct Host {
    pub(super) network: Network,
    pub(super) id: ProcessId,
}

impl Host {
    /// This process.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Whether it is stopped.
    pub fn is_frozen(&self) -> bool {
        self.network.with(|net| net.is_frozen(self.id))
    }

    /// Whether it has been killed.
    pub fn is_dead(&self) -> bool {
        self.network.with(|net| net.is_dead(self.id))
    }

    /// Waits while the process is stopped; never ends once it has been killed.
    pub async fn running(&self) {
        self.network
            .until(|net| !net.is_frozen(self.id) && !net.is_dead(self.id))
            .await;
    }

    /// Listens at a port of this machine (0: any).
    ///
    /// # Errors
    /// The port is taken, or the address is another machine's.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        let (sender, arrivals) = mpsc::unbounded_channel();
        let address = self.network.with(|net| {
            let machine = net.processes[self.id.0].machine;
            if address.ip() != machine.ip() && !address.ip().is_unspecified() {
                return Err(io::Error::from(io::ErrorKind::AddrNotAvailable));
            }
            let port = match address.port() {
                0 => {
                    net.next_port += 1;
                    net.next_port
                }
                port => port,
            };
            let address = SocketAddr::new(machine.ip(), port);
            if net.listeners.contains_key(&address) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            net.listeners.insert(address, (self.id, sender));
            Ok(address)
        })?;
        Ok(Listener {
            network: self.network.clone(),
            owner: self.id,
            address,
            arrivals,
        })
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let to = Machine::of(address).ok_or_else(refused)?;
        self.running().await;
        let (from, latency) = self.network.with(|net| {
            let second = net.started.elapsed().as_secs();
            *net.dials.entry((self.id, address, second)).or_default() += 1;
            let from = net.processes[self.id.0].machine;
            (from, net.latency(from, to) + net.latency(to, from))
        });
        tokio::time::sleep(latency).await;
        let open = |net: &Net| {
            let held = net.held.contains(&(from, to)) || net.held.contains(&(to, from));
            !held && !net.gone.contains(&to)
        };
        self.network.until(open).await;
        self.running().await;
        self.network
            .with(|net| {
                let (owner, arrivals) = net.listeners.get(&address).ok_or_else(refused)?;
                let (owner, arrivals) = (*owner, arrivals.clone());
                net.next_port += 1;
                let here = SocketAddr::new(from.ip(), net.next_port);
                let (out, back) = (net.new_pipe(self.id, owner), net.new_pipe(owner, self.id));
                let near = Stream {
                    network: self.network.clone(),
                    owner: self.id,
                    from: back,
                    to: out,
                    peer: address,
                    arrival: None,
                };
                let far = Stream {
                    network: self.network.clone(),
                    owner,
                    from: out,
                    to: back,
                    peer: here,
                    arrival: None,
                };
                Ok((near, arrivals, far))
            })
            .map(|(near, arrivals, far)| {
                // A listener that is being dropped drops the stream, which the other end notices.
                let _ = arrivals.send(far);
                near
            })
    }
}
